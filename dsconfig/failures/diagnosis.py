"""Separate the first failure of a run from its consequences."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsconfig.facts import run_log
from dsconfig.failures import explanation
from dsconfig.failures.scanner import EXCEPTION, RECOVERED, Match, Scan
from dsconfig.failures.signature import Role, Signature, compiled, order, programs, remedies_of
from dsconfig.failures.text import Frame, redacted_values, shortened
from dsconfig.report import writers

LONGEST = 300
"""Characters of a quoted line."""
MOST_LINES = 12
"""Lines of the message of an unknown exception."""
NEAR_END = 60
"""Lines before the end of a log in which an unknown exception is what ended the run."""
LATE = 100
"""Steps after which memory that is needed in each step would have been missing before."""
UNKNOWN = "unrecognized-exception"
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
    frame: Frame | None = None
    """Innermost frame of the traceback, outside of torch's module calls."""
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sizes of an out-of-memory message, in bytes."""
    confidence: str = "high"
    """``high``: text and place, figures or release identify it; ``medium``: the text only;
    ``unknown``: no signature describes it."""

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
            "frame": self.frame._asdict() if self.frame else None,
            "figures": dict(self.figures),
            "confidence": self.confidence,
        }

    def redacted(self) -> "Failure":
        """Return the failure without paths, hosts, addresses, tokens and mail addresses."""
        return replace(self, **{name: redacted_values(getattr(self, name)) for name in _QUOTED})


_QUOTED = ("file", "cause", "remedy", "remedy_parts", "text", "frame")
"""Fields that quote a log."""


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

    def redacted(self) -> "Diagnosis":
        """Return the diagnosis without paths, hosts, tokens and mail addresses of the logs."""
        return replace(
            self,
            failures=tuple(failure.redacted() for failure in self.failures),
            consequences=tuple(failure.redacted() for failure in self.consequences),
            facts=redacted_values(dict(self.facts)),
        )

    def __repr__(self) -> str:
        names = ", ".join(failure.signature for failure in self.failures)
        return f"<Diagnosis: {names[:120] or 'no failure recognized'}>"


@dataclass(frozen=True, slots=True)
class Hit:
    """A match with the signature that describes it; None for an unknown exception."""

    match: Match
    signature: Signature | None
    values: Mapping[str, str]
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        return self.signature.name if self.signature else UNKNOWN

    @property
    def role(self) -> Role:
        return self.signature.role if self.signature else Role.ERROR


def separate(
    scans: Sequence[Scan],
    releases: Mapping[str, str],
    program: str | None,
    growth: run_log.Growth | None = None,
) -> tuple[tuple[Failure, ...], tuple[Failure, ...], list[str]]:
    """Return failures, consequences, and the signatures after which the run continued."""
    clues = {clue for scan in scans for clue in scan.clues}
    stage = stage_of(clues)
    by_file = {scan.file: scan for scan in scans}
    hits, unexplained = list[Hit](), [match for scan in scans for match in scan.exceptions]
    for match in (match for scan in scans for match in scan.matches):
        hit = _hit(match, clues, releases, growth)
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
        tuple(_failures(failures, hits, program, stage, releases)),
        tuple(_failures(consequences, hits, program, stage, releases)),
        recovered,
    )


def _hit(
    match: Match,
    clues: set[str],
    releases: Mapping[str, str],
    growth: run_log.Growth | None,
) -> Hit | None:
    """Return the first signature whose conditions hold."""
    around = f"{match.text}\n{match.after}"
    figures = explanation.memory_figures(" ".join(around.split()))
    shown = {
        explanation.conclusion(figures),
        "growth" if growth else "",
        "later" if match.step >= LATE else "",
        "" if match.progress else "first step",
        "",
    }
    for signature in match.signatures:
        if not clues.issuperset(signature.clues) or not signature.affects(releases):
            continue
        if signature.figure not in shown or not _is_at(signature, match):
            continue
        if not all(compiled(pattern).search(around) for pattern in signature.near):
            continue
        hit = compiled(signature.pattern).search(" ".join(around.split()))
        values = {name: value for name, value in hit.groupdict().items() if value} if hit else {}
        values |= _listed(signature.items, around) if signature.items else {}
        has_figures = "requested" in figures
        values |= explanation.memory_values(figures) if has_figures else {}
        values |= explanation.course_values(match.step, growth)
        return Hit(match, signature, values, figures if has_figures else {})
    return None


def _is_at(signature: Signature, match: Match) -> bool:
    """Return whether the lines before a match are those that a signature requires."""
    before = match.traceback
    if signature.frame:
        last = str(before.frames[-1]) if before.frames else ""
        if not compiled(signature.frame).search(last):
            return False
    if signature.frames and not any(
        compiled(signature.frames).search(str(frame)) for frame in before.frames
    ):
        return False
    if signature.before and not compiled(signature.before).search(before.text):
        return False
    return not signature.phase or run_log.phase_of_frames(before.text) == signature.phase


def _listed(items: str, message: str) -> dict[str, str]:
    """Return the named groups of all items of a message, joined by semicolons."""
    found: dict[str, list[str]] = {name: [] for name in compiled(items).groupindex}
    for item in compiled(items).finditer(message):
        for name, value in item.groupdict().items():
            found[name] += [value.strip()] if value else []
    return {name: "; ".join(dict.fromkeys(values)) for name, values in found.items() if values}


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
        last[hit.match.file].append(hit.match.previous)
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
            order().get(hit.name, 0) if hit.role is Role.CONSEQUENCE else 0,
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
        and ((is_other_rank and not _precedes(first, hit)) or _continued_between(first, hit))
    )


def _continued_between(one: Hit, other: Hit) -> bool:
    """Return whether the run continued after a failure, as it does after a restart."""
    a, b = one.match, other.match
    return a.file == b.file and b.progress - a.progress >= RECOVERED


def stage_of(clues: Container[str]) -> int | None:
    """Return the ZeRO stage that the logs show; None if they show several or none."""
    stages = [stage for stage in (2, 3) if f"stage {stage}" in clues]
    return stages[0] if len(stages) == 1 else None


def _failures(
    chosen: Sequence[Hit],
    hits: Sequence[Hit],
    program: str | None,
    stage: int | None,
    releases: Mapping[str, str],
) -> Iterable[Failure]:
    """Yield one failure per signature."""
    done: set[str] = set()
    for hit in chosen:
        if hit.name in done:
            continue
        done.add(hit.name)
        ranks = {other.match.rank for other in hits if other.name == hit.name}
        cause, remedy = _texts(hit, program, stage, releases)
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
            frame=explanation.innermost(hit.match.traceback.frames),
            figures=hit.figures,
            confidence=_confidence(hit),
        )


def _confidence(hit: Hit) -> str:
    if hit.signature is None:
        return "unknown"
    waits = hit.role not in (Role.ERROR, Role.SILENT)
    return "high" if hit.signature.is_located or not (waits or hit.signature.clues) else "medium"


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
_ASIDE = re.compile(r" \([^(){}]*\{(\w+)\}[^(){}]*\)")
"""A parenthesis of a cause with one value, which the log may not have."""


def _texts(
    hit: Hit, program: str | None, stage: int | None, releases: Mapping[str, str]
) -> tuple[str, tuple[str, ...]]:
    """Return the cause, and the parts of the remedy in the words of the program that runs."""
    signature = hit.signature
    if signature is None:
        frame = explanation.innermost(hit.match.traceback.frames)
        message = " ".join([hit.match.text, *_continued(hit.match.after)])
        cause, remedy = explanation.unknown(message, frame, releases)
        return cause, tuple(_FILE.split(remedy))
    words = remedies_of(program)
    remedy = next((signature.remedies[word] for word in words if word in signature.remedies), None)
    cause = signature.cause
    if "{" in cause:
        cause = _ASIDE.sub(lambda found: found[0] if found[1] in hit.values else "", cause)
        cause = cause.format_map(_Values(hit.values))
    remedy = remedy or signature.at_stage.get(str(stage)) or signature.remedy
    values = _Values(hit.values)
    remedy = _UNFILLED.sub(lambda found: found[0] if found[1] in values else "", remedy)
    log = Path(hit.match.file)
    written = {LOG: f"--log {writers.shell([str(log)])}"} if log.is_file() else {}
    named = {f"{{{name}}}": value for name, value in values.items()} | written
    return cause, tuple(
        _VALUE.sub(lambda found: named.get(found[0], found[0]), part)
        for part in _FILE.split(remedy)
    )


_ENDS_MESSAGE = re.compile(
    r"\s*$|\s*File \"|Traceback|\[\d{4}-|[EWIF]\d{4} |\s*\d{1,3}%\||During handling|The above exc|"
    r"={5}"
)


def _continued(after: str) -> Iterable[str]:
    """Yield the following lines of a message."""
    for line in after.splitlines()[:MOST_LINES]:
        if _ENDS_MESSAGE.match(line):
            return
        yield line.strip()


def program_of(scans: Sequence[Scan]) -> str | None:
    """Return the outermost program that the logs name."""
    found = {name for scan in scans for name in scan.programs}
    return next((name for name in programs() if name in found), None)
