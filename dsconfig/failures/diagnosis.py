"""Separate the first failure of a run from its consequences."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsconfig.facts import run_log
from dsconfig.failures.clues import PROGRAMS, SPEAKS
from dsconfig.failures.scanner import EXCEPTION, RECOVERED, Match, Scan
from dsconfig.failures.signature import Role, Signature, compiled
from dsconfig.failures.signatures import SIGNATURES
from dsconfig.failures.text import shortened, without_prefix
from dsconfig.report import writers

MESSAGE = 4000
"""Characters after a line that belong to its message."""
LONGEST = 300
"""Characters of a quoted line."""
NEAR_END = 60
"""Lines before the end of a log in which an unknown exception is what ended the run."""
UNKNOWN = "unrecognized-exception"
_LISTED = {signature.name: place for place, signature in enumerate(SIGNATURES)}
_ORDER = {role: place for place, role in enumerate(Role)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure, or consequence of one."""

    signature: str
    file: str
    line: int
    rank: int | None
    cause: str
    remedy: str
    remedy_parts: tuple[str, ...] = ()
    """The remedy, split where its commands name the config."""
    threads: tuple[str, ...] = ()
    text: str = ""
    """The line, without prefixes."""
    ranks: tuple[int, ...] = ()
    """All ranks that printed it."""

    @property
    def data(self) -> dict[str, Any]:
        """Return the failure ready for JSON."""
        return {
            "signature": self.signature,
            "file": self.file,
            "line": self.line,
            "rank": self.rank,
            "cause": self.cause,
            "remedy": self.remedy,
            "threads": list(self.threads),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The failures found in logs, the first one first, and what followed from it."""

    failures: tuple[Failure, ...] = ()
    consequences: tuple[Failure, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    log: run_log.RunLog = field(default_factory=run_log.RunLog)
    """Memory readings, throughput and config of all logs."""

    @property
    def data(self) -> dict[str, Any]:
        """Return the diagnosis ready for JSON."""
        return {
            "format_version": "1.0",
            "failures": [failure.data for failure in self.failures],
            "consequences": [failure.data for failure in self.consequences],
            "facts": dict(self.facts),
        }

    def for_config(self, path: str) -> "Diagnosis":
        """Return the diagnosis with the path of the config in its commands."""
        name = writers.shell([path])
        failures, consequences = (
            tuple(
                replace(each, remedy=name.join(each.remedy_parts or [each.remedy]))
                for each in found
            )
            for found in (self.failures, self.consequences)
        )
        return replace(self, failures=failures, consequences=consequences)

    def __repr__(self) -> str:
        names = ", ".join(failure.signature for failure in self.failures)
        return f"<Diagnosis: {names[:120] or 'no failure recognized'}>"


@dataclass(frozen=True, slots=True)
class Hit:
    """A match with the signature that describes it; None for an unknown exception."""

    match: Match
    signature: Signature | None
    values: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.signature.name if self.signature else UNKNOWN

    @property
    def role(self) -> Role:
        return self.signature.role if self.signature else Role.ERROR


def separate(
    scans: Sequence[Scan], releases: Mapping[str, str], program: str | None
) -> tuple[tuple[Failure, ...], tuple[Failure, ...], list[str]]:
    """Return failures, consequences, and the signatures after which the run continued."""
    clues = {clue for scan in scans for clue in scan.clues}
    stage = stage_of(clues)
    by_file = {scan.file: scan for scan in scans}
    hits, unexplained = list[Hit](), [match for scan in scans for match in scan.exceptions]
    for match in (match for scan in scans for match in scan.matches):
        hit = _hit(match, clues, releases)
        if hit is not None:
            hits.append(hit)
        elif EXCEPTION.match(match.text):
            unexplained.append(match)
    hits, recovered = _without_recovered(hits, by_file)
    hits += _unknown(unexplained, hits, by_file)
    hits = _without_unfinished(hits, by_file)
    if not hits:
        return (), (), recovered
    first = _first(hits)
    failures, consequences = [first], list[Hit]()
    for hit in sorted(hits, key=_place):
        if hit.name == first.name:
            continue
        (failures if _is_independent(hit, first) else consequences).append(hit)
    return (
        tuple(_failures(failures, hits, program, stage)),
        tuple(_failures(consequences, hits, program, stage)),
        recovered,
    )


def _hit(match: Match, clues: set[str], releases: Mapping[str, str]) -> Hit | None:
    """Return the first signature whose conditions hold."""
    for signature in match.signatures:
        if not clues.issuperset(signature.clues) or not signature.affects(releases):
            continue
        around = f"{match.text}\n{match.after[:MESSAGE]}"
        if not all(compiled(pattern).search(around) for pattern in signature.near):
            continue
        if signature.frame and not compiled(signature.frame).search(_innermost(match.before)):
            continue
        if signature.phase and run_log.phase_of_frames(match.before) != signature.phase:
            continue
        hit = compiled(signature.pattern).search(" ".join(around.split()))
        values = {name: value for name, value in hit.groupdict().items() if value} if hit else {}
        values |= _listed(signature.items, around) if signature.items else {}
        return Hit(match, signature, values)
    return None


def _listed(items: str, message: str) -> dict[str, str]:
    """Return the named groups of all items of a message, joined by semicolons."""
    lines = "\n".join(without_prefix(line)[0] for line in message.splitlines())
    found: dict[str, list[str]] = {name: [] for name in compiled(items).groupindex}
    for item in compiled(items).finditer(lines):
        for name, value in item.groupdict().items():
            found[name] += [value.strip()] if value else []
    return {name: "; ".join(dict.fromkeys(values)) for name, values in found.items() if values}


def _innermost(before: str) -> str:
    """Return the last frame of the traceback that ends a text."""
    return before[max(before.rfind('File "'), 0) :]


def _without_recovered(
    hits: Sequence[Hit], files: Mapping[str, Scan]
) -> tuple[list[Hit], list[str]]:
    """Drop errors after which the run continued, and return the names of these."""
    last_end: dict[str, int] = {}
    for hit in hits:
        if hit.role in (Role.CONSEQUENCE, Role.KILLED):
            last_end[hit.match.file] = max(hit.match.line, last_end.get(hit.match.file, 0))
    kept, recovered = list[Hit](), list[str]()
    for hit in hits:
        continued = files[hit.match.file].progress - hit.match.progress >= RECOVERED
        own = last_end.get(hit.match.file, 0)
        ended = own > hit.match.line or len(last_end) > (own > 0)
        if continued and not ended and hit.role is not Role.SILENT:
            recovered.append(hit.name)
        else:
            kept.append(hit)
    return kept, sorted(set(recovered))


def _unknown(
    exceptions: Sequence[Match], hits: Sequence[Hit], files: Mapping[str, Scan]
) -> list[Hit]:
    """Return the first exception per file that no signature describes and that ended a rank."""
    reported = any(hit.role in (Role.CONSEQUENCE, Role.KILLED, Role.TIMEOUT) for hit in hits)
    known: dict[str, set[int | None]] = {}
    for hit in hits:
        if hit.role is Role.ERROR:
            known.setdefault(hit.match.file, set()).add(hit.match.rank)
    found: dict[str, Hit] = {}
    for match in sorted(exceptions, key=lambda match: match.line):
        scan = files[match.file]
        is_last = match.line > scan.lines - NEAR_END
        continued = scan.progress - match.progress >= RECOVERED
        ranks = known.get(match.file, set[int | None]())  # an unknown rank may be any
        is_explained = bool(ranks) and (match.rank is None or bool(ranks & {match.rank, None}))
        if (reported or is_last) and not continued and not is_explained:
            found.setdefault(match.file, Hit(match, None, {}))
    return list(found.values())


def _without_unfinished(hits: Sequence[Hit], files: Mapping[str, Scan]) -> list[Hit]:
    """Keep signs of a run that hangs only if they are the last line, or the last before a report
    that the run was stopped, and nothing else was found."""
    found = [hit for hit in hits if hit.role is not Role.STUCK]
    if any(hit.role is not Role.CONSEQUENCE for hit in found):
        return found
    last = {name: [scan.last_line] for name, scan in files.items()}
    for hit in found:
        before = hit.match.before.rstrip()
        last[hit.match.file].append(before[before.rfind("\n") + 1 :])
    return found + [
        hit
        for hit in hits
        if hit.role is Role.STUCK
        and any(phrase in line for phrase in _phrases(hit) for line in last[hit.match.file])
    ]


def _phrases(hit: Hit) -> tuple[str, ...]:
    return hit.signature.phrases if hit.signature else ()


def _first(hits: Sequence[Hit]) -> Hit:
    """Return the hit that explains the others.

    The error of a rank precedes signals, signals precede timeouts, and these the reports of others;
    unless the times, or the order of one rank's lines, show that a timeout came before.
    """
    root = next((hit.match.rank for hit in hits if hit.name == "elastic-summary"), None)
    ordered = sorted(
        hits,
        key=lambda hit: (
            _ORDER[hit.role],
            hit.signature is None,
            _LISTED.get(hit.name, 0) if hit.role is Role.CONSEQUENCE else 0,
            root is not None and hit.match.rank is not None and hit.match.rank != root,
            *_place(hit),
        ),
    )
    first = ordered[0]
    waited = [hit for hit in ordered if hit.role is Role.TIMEOUT and _precedes(hit, first)]
    return min(waited, key=_place) if first.role is Role.ERROR and waited else first


def _place(hit: Hit) -> tuple[float, str, int]:
    """Return the time of a hit, with its file and line."""
    return (hit.match.time or 0.0, hit.match.file, hit.match.line)


def _precedes(one: Hit, other: Hit) -> bool:
    """Return whether a hit is known to be older: by times, or by lines of one rank."""
    a, b = one.match, other.match
    if a.file == b.file and a.rank == b.rank:
        return a.line < b.line
    return a.time is not None and b.time is not None and a.time + 1 < b.time


def _is_independent(hit: Hit, first: Hit) -> bool:
    """Return whether a hit is a failure of its own rather than a consequence of the first."""
    if hit.role is Role.SILENT:
        return True
    is_other_rank = hit.match.rank is not None and hit.match.rank != first.match.rank
    return (
        hit.role is Role.ERROR
        and first.role is Role.ERROR
        and is_other_rank
        and not _precedes(first, hit)
    )


def stage_of(clues: Container[str]) -> int | None:
    """Return the ZeRO stage that the logs show; None if they show several or none."""
    stages = [stage for stage in (2, 3) if f"stage {stage}" in clues]
    return stages[0] if len(stages) == 1 else None


def _failures(
    chosen: Sequence[Hit], hits: Sequence[Hit], program: str | None, stage: int | None
) -> Iterable[Failure]:
    """Yield one failure per signature."""
    done: set[str] = set()
    for hit in chosen:
        if hit.name in done:
            continue
        done.add(hit.name)
        ranks = {other.match.rank for other in hits if other.name == hit.name}
        cause, remedy = _texts(hit, program, stage)
        yield Failure(
            signature=hit.name,
            file=hit.match.file,
            line=hit.match.line,
            rank=hit.match.rank,
            cause=cause,
            remedy="FILE".join(remedy),
            remedy_parts=remedy,
            threads=tuple(hit.signature.urls) if hit.signature else (),
            text=shortened(hit.match.text, LONGEST),
            ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
        )


class _Values(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


LOG = "--log LOG"
"""Replaced by the name of the log in remedies."""
_FILE = re.compile(r"\bFILE\b")
"""Replaced by the name of the config in remedies."""
_VALUE = re.compile(rf"\{{\w+\}}|{LOG}")
_UNFILLED = re.compile(r"\{(\w+)\}\. ")
"""A sentence of a remedy for which the log has no value."""


def _texts(hit: Hit, program: str | None, stage: int | None) -> tuple[str, tuple[str, ...]]:
    """Return the cause, and the parts of the remedy in the words of the program that runs."""
    signature = hit.signature
    if signature is None:
        return (
            f"the script or a library raised {shortened(hit.match.text, 200)}",
            (
                "Read the traceback that ends at this line; its last frame in your own files is "
                "the place to start. No signature describes this exception.",
            ),
        )
    words = SPEAKS.get(program or "", ())
    remedy = next((signature.remedies[word] for word in words if word in signature.remedies), None)
    cause = signature.cause
    if "{" in cause:
        cause = cause.format_map(_Values(hit.values))
    remedy = remedy or signature.at_stage.get(stage or 0) or signature.remedy
    values = _Values(hit.values)
    remedy = _UNFILLED.sub(lambda found: found[0] if found[1] in values else "", remedy)
    log = Path(hit.match.file)
    written = {LOG: f"--log {writers.shell([str(log)])}"} if log.is_file() else {}
    named = {f"{{{name}}}": value for name, value in values.items()} | written
    return cause, tuple(
        _VALUE.sub(lambda found: named.get(found[0], found[0]), part)
        for part in _FILE.split(remedy)
    )


def program_of(scans: Sequence[Scan]) -> str | None:
    """Return the outermost program that the logs name."""
    found = {name for scan in scans for name in scan.programs}
    return next((name for name in PROGRAMS if name in found), None)
