"""Scan a log once, in blocks: matches of signatures, clues, and lines with facts.

Substrings are searched in whole blocks; only lines that contain one are decoded. The time is linear
in the size of the log, and the memory does not depend on it.
"""

import codecs
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, BinaryIO, cast

from dsconfig.facts import progress_bars, run_log
from dsconfig.failures.signature import Signature, clues, compiled, order, programs, signatures
from dsconfig.failures.text import (
    ESCAPES,
    Line,
    Traceback,
    host_of,
    is_sample,
    last_time,
    own_lines,
    rank_in,
    split,
    traceback_of,
    without_prefix,
)

BLOCK = 1 << 20
LOOKBACK = 128 << 10
"""Bytes before a line that belong to its traceback, with those of other ranks between."""
SHORT = 16 << 10
"""The same for ranks after the first ``WELL_READ`` matches."""
WELL_READ = 64
LOOKAHEAD = 32 << 10
"""Bytes after a line that belong to its message, or to a printed config."""
LONGEST = 16 << 10
"""Bytes of a line that are read."""
SETUP_LINES = 50_000
"""First lines of a log, in which programs print the setup of a run."""
MOST_MATCHES = 4096
MOST_FACTS = 20_000
"""Lines kept per log; later ones are dropped."""
CONFIG_LINES = 400
"""Lines of a config that DeepSpeed prints."""
WRAPPED = 6
"""Lines after an exception that may belong to its message."""
MESSAGE = 4000
"""Characters after a line that belong to its message."""
KEY = 80
"""Characters that distinguish two exceptions."""
_SOURCE = re.compile(r"(?:[\w.-]{1,64}: )?\s*(?:raise|assert) ")
"""Source code in a traceback, of a process or a host."""
_DIGITS = re.compile(r"\d+")
MOST_DIGITS = 6
"""Digits of a rank."""
RECOVERED = 3
"""Lines of progress after an error that show that the run continued."""
PROGRESS = (b"'loss': ", b'"loss": ', b"SamplesPerSec=", b"lm loss: ", b", loss=")
FINISHED = (b"'train_runtime': ", b"exits successfully", b"***** train metrics *****")
"""Lines after which nothing earlier ended the run; each counts as ``RECOVERED`` of progress."""
_FACTS = tuple(phrase.encode() for phrase in run_log.PHRASES)
_NUMERALS = b"0123456789"
MOST_TEMPLATES = 50_000
LONGEST_TEMPLATE = 1000
"""Lines without digits that are remembered, and their longest."""
EXCEPTION = re.compile(
    r"(?:[\w.-]{1,80}: )?((?:\w{1,60}\.){0,8}\w{0,60}(?:Error|Exception))(?:: |$)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A line that one of ``signatures`` may describe, the most specific first."""

    signatures: tuple[Signature, ...]
    file: str
    line: int
    rank: int | None
    time: float | None
    """Seconds since January 1 at the last time printed before, or on, the line."""
    text: str
    traceback: Traceback
    """Lines of this process before the line."""
    after: str
    """Lines of this process after the line."""
    progress: int
    """Lines of progress printed before."""
    previous: str
    """The line before, of any process."""
    step: int
    """Steps before, at least; 0 if unknown."""


@dataclass(slots=True)
class Scan:
    """What one log contains."""

    file: str
    rank: int | None = None
    """Rank according to the file name."""
    lines: int = 0
    progress: int = 0
    matches: list[Match] = field(default_factory=list[Match])
    exceptions: list[Match] = field(default_factory=list[Match])
    """Last lines of tracebacks that no signature describes."""
    clues: set[str] = field(default_factory=set[str])
    programs: set[str] = field(default_factory=set[str])
    facts: list[str] = field(default_factory=list[str])
    """Lines that ``run_log`` reads."""
    last_line: str = ""


@cache
def _by_phrase() -> Mapping[bytes, tuple[Signature, ...]]:
    """Return the signatures that a phrase may belong to."""
    found: dict[bytes, list[Signature]] = {}
    for signature in signatures():
        for phrase in signature.phrases:
            found.setdefault(phrase.encode(), []).append(signature)
    return {phrase: tuple(signatures) for phrase, signatures in found.items()}


@cache
def _compact_phrases() -> tuple[tuple[str, Signature], ...]:
    """Return the long phrases without spaces: lines that a terminal wrapped contain them."""
    found = ((_compact(phrase), each) for each in signatures() for phrase in each.phrases)
    return tuple((phrase, each) for phrase, each in found if len(phrase) >= 16)


def _compact(text: str) -> str:
    return "".join(text.split())


def scan(file: BinaryIO, name: str, rank: int | None) -> Scan:
    """Scan an open log to its end."""
    result = Scan(name, rank)
    seen: dict[object, int] = {}
    templates = _Templates((*_by_phrase(), b"Error", b"Exception", *_FACTS))
    progress = _Templates((*PROGRESS, *FINISHED))
    text, done, first = b"", 0, 1
    for block, is_last in _blocks(file):
        text += block
        limit = len(text) if is_last else _line_start(text, len(text) - LOOKAHEAD)
        if limit <= done and not is_last:
            # A line longer than a block: read its beginning, drop the rest.
            if len(text) - done > 2 * BLOCK:
                text = text[: done + LONGEST]
            continue
        region = _Region(text, done, limit, first)
        found = region.lines_with(templates, progress)
        _search(region, found, result, seen)
        _add_facts(region, found, result)
        if first < SETUP_LINES:
            _add_clues(region.decoded(region.start, region.end), result)
        result.lines = region.line_at(limit) - (text[limit - 1 : limit] == b"\n")
        if tail := text[done:limit].rstrip(b"\r\n\0 ")[-LONGEST:]:
            result.last_line = tail[_line_start(tail, len(tail)) :].decode("utf-8", "replace")
        keep = _line_start(text, limit - LOOKBACK)
        first += text.count(b"\n", 0, keep)
        text, done = text[keep:], limit - keep
    return result


def _line_start(text: bytes, offset: int) -> int:
    """Return the start of the line at an offset; a carriage return starts a line too."""
    offset = max(offset, 0)
    return max(text.rfind(b"\n", 0, offset), text.rfind(b"\r", 0, offset)) + 1


def _blocks(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield blocks in UTF-8 without terminal codes, and whether they are the last."""
    start = file.read(2)
    if start == b"\x1f\x8b":
        file = cast("BinaryIO", gzip.GzipFile(fileobj=cast("Any", _Joined(start, file))))
        start = _some(file, 2)
    decoder = None
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
    block = (start + _some(file, BLOCK)).removeprefix(codecs.BOM_UTF8)
    while block:
        following = _some(file, BLOCK)
        if decoder is not None:
            block = decoder.decode(block, not following).encode("utf-8", "replace")
        yield (ESCAPES.sub(b"", block) if b"\x1b" in block else block), not following
        block = following


def _some(file: BinaryIO, count: int) -> bytes:
    """Return the next bytes; none at the end, or where compressed data is cut or damaged."""
    try:
        return file.read(count)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return b""


class _Joined:
    """A file after some of its bytes were read."""

    def __init__(self, start: bytes, rest: BinaryIO) -> None:
        self._start, self._rest = start, rest

    def read(self, count: int = -1) -> bytes:
        start, self._start = self._start, b""
        return start + self._rest.read(count if count < 0 else max(0, count - len(start)))


class _Templates:
    """Which phrases occur in a line without its digits.

    Most lines of a log differ from earlier ones in digits only, and are not searched again.
    """

    def __init__(self, phrases: Iterable[bytes]) -> None:
        self._phrases = {phrase: phrase.translate(None, _NUMERALS) for phrase in phrases}
        self._without, self._with = set[bytes](), dict[bytes, tuple[bytes, ...]]()
        self._size = 0

    def matched(self, lines: set[bytes]) -> Mapping[bytes, tuple[bytes, ...]]:
        """Return the phrases that each line may contain; lines without one are left out."""
        known = {line: self._with[line] for line in lines if line in self._with}
        new = list(lines - self._without - known.keys())
        found = self._search(new)
        self._remember(new, found)
        return known | found

    def _search(self, lines: list[bytes]) -> dict[bytes, tuple[bytes, ...]]:
        text = b"\n".join(lines)
        found: dict[bytes, tuple[bytes, ...]] = {}
        for phrase, stripped in self._phrases.items():
            place = text.find(stripped)
            while place >= 0:
                end = text.find(b"\n", place)
                end = len(text) if end < 0 else end
                line = text[text.rfind(b"\n", 0, place) + 1 : end]
                found[line] = (*found.get(line, ()), phrase)
                place = text.find(stripped, end)
        return found

    def _remember(self, lines: list[bytes], found: Mapping[bytes, tuple[bytes, ...]]) -> None:
        if self._size > MOST_TEMPLATES:
            self._without.clear()
            self._with.clear()
            self._size = 0
        short = [line for line in lines if len(line) < LONGEST_TEMPLATE]
        self._size += len(short)
        self._with |= {line: found[line] for line in short if line in found}
        self._without.update(line for line in short if line not in found)


class _Region:
    """The part of a text that is searched, with its context and line numbers."""

    def __init__(self, text: bytes, start: int, end: int, first: int) -> None:
        self.text, self.start, self.end = text, start, end
        self._known, self._line = start, first + text.count(b"\n", 0, start)
        self._counted, self._progress = start, 0
        self._counted_phrases = list[tuple[bytes, int]]()

    def line_at(self, offset: int) -> int:
        """Return the line number at an offset; offsets increase from call to call."""
        self._line += self.text.count(b"\n", self._known, offset)
        self._known = offset
        return self._line

    def lines_with(
        self, templates: _Templates, progress: _Templates
    ) -> dict[tuple[int, int], list[bytes]]:
        """Return the bounds of lines that contain a phrase, and the phrases in each.

        Carriage returns end lines too.
        """
        body = self.text[self.start : self.end].replace(b"\r", b"\n")
        stripped = body.translate(None, _NUMERALS).split(b"\n")
        distinct = set(stripped)
        present = {phrase for each in progress.matched(distinct).values() for phrase in each}
        self._counted_phrases = [(each, RECOVERED if each in FINISHED else 1) for each in present]
        matched = templates.matched(distinct)
        found: dict[tuple[int, int], list[bytes]] = {}
        if not matched:
            return found
        lines = body.split(b"\n")
        lengths = list(accumulate(map(len, lines)))
        for number in (number for number, each in enumerate(stripped) if each in matched):
            phrases = [phrase for phrase in matched[stripped[number]] if phrase in lines[number]]
            if phrases:
                end = self.start + lengths[number] + number
                found[end - len(lines[number]), end] = phrases
        return found

    def progress_before(self, offset: int) -> int:
        """Return the lines of progress in this region before an offset; offsets increase."""
        self._progress += sum(
            weight * self.text.count(phrase, self._counted, offset)
            for phrase, weight in self._counted_phrases
        )
        self._counted = offset
        return self._progress

    def decoded(self, start: int, end: int) -> str:
        return self.text[max(start, 0) : end].decode("utf-8", "replace")


def _search(
    region: _Region,
    found: Mapping[tuple[int, int], Sequence[bytes]],
    result: Scan,
    seen: dict[object, int],
) -> None:
    """Add the matches, exceptions and clues of a region."""
    by_phrase = _by_phrase()
    facts = set(_FACTS) - by_phrase.keys()
    for (start, end), phrases in found.items():
        if facts.issuperset(phrases):
            continue
        raw = region.decoded(start, min(end, start + LONGEST))
        line = split(raw)
        if _SOURCE.match(line.text) or is_sample(line.text):
            # Source code in a traceback, whose message follows; or quoted text.
            continue
        candidates = tuple(
            signature
            for phrase in phrases
            for signature in by_phrase.get(phrase, ())
            if not signature.pattern or compiled(signature.pattern).search(line.text)
        )
        exception = EXCEPTION.match(line.text)
        if not candidates and exception is None:
            continue
        rank = _rank(candidates, line.text, line.rank, result.rank)
        progress = result.progress + region.progress_before(start)
        kind = exception and _DIGITS.sub("0", line.text[:KEY])
        if not _is_new((tuple(candidates), kind, rank), progress, seen):
            continue
        place = _Place(raw, line, start, end, rank, progress)
        _add_match(region, result, place, candidates, exception is not None)
    result.progress += region.progress_before(region.end)


@dataclass(frozen=True, slots=True)
class _Place:
    """A line that matches."""

    raw: str
    line: Line
    start: int
    end: int
    rank: int | None
    progress: int


def _add_match(
    region: _Region,
    result: Scan,
    place: _Place,
    candidates: Sequence[Signature],
    is_exception: bool,
) -> None:
    """Add a match with the lines of its process around it."""
    is_many = len(result.matches) + len(result.exceptions) > WELL_READ
    reach = SHORT if is_many else LOOKBACK
    before = region.decoded(place.start - reach, place.start)
    after = region.decoded(place.end, place.end + min(reach, LOOKAHEAD))
    host = host_of(place.raw, before)
    line = split(place.raw, host)
    lines = list(own_lines(after.lstrip("\r\n"), line.source, host))
    if is_exception:
        candidates = (*candidates, *_wrapped([line.text, *lines[:WRAPPED]]))
    match = Match(
        signatures=tuple(sorted(set(candidates), key=lambda each: order()[each.name])),
        file=result.file,
        line=region.line_at(place.start),
        rank=place.rank,
        time=last_time(place.raw) or last_time(before),
        text=line.text.strip(),
        traceback=traceback_of(own_lines(before, line.source, host)),
        after="\n".join(lines)[:MESSAGE],
        progress=place.progress,
        previous=before.rstrip()[-LONGEST:].rpartition("\n")[2],
        step=max(place.progress, _step(candidates, before + place.raw, host)),
    )
    if match.traceback.is_handled and is_exception:
        return
    (result.matches if candidates else result.exceptions).append(match)
    _add_clues(before + place.raw + after, result)


def _step(candidates: Sequence[Signature], before: str, host: str) -> int:
    """Return the step of the training bar, if it distinguishes the candidates."""
    if not any(each.figure for each in candidates):
        return 0
    return progress_bars.last_step(before.replace(f"{host}: ", "") if host else before)


def _wrapped(lines: Sequence[str]) -> tuple[Signature, ...]:
    """Return the signatures that describe a message only across the ends of its lines."""
    parts = [_compact(line) for line in lines]
    compact, message = "".join(parts), " ".join(lines)
    return tuple(
        signature
        for phrase, signature in _compact_phrases()
        if phrase in compact
        and (not signature.pattern or compiled(signature.pattern).search(message))
        and not any(
            phrase in part and (not signature.pattern or compiled(signature.pattern).search(line))
            for part, line in zip(parts, lines, strict=True)
        )
    )


def _is_new(key: object, progress: int, seen: dict[object, int]) -> bool:
    """Return whether to keep a match: the first, and the first after the run continued."""
    earlier = seen.get(key)
    if earlier is None and len(seen) >= MOST_MATCHES:
        return False
    if earlier is not None and progress < earlier + RECOVERED:
        return False
    seen[key] = progress
    return True


def _rank(
    candidates: Sequence[Signature], line: str, prefix: int | None, file: int | None
) -> int | None:
    """Return the rank that a line is about."""
    for signature in candidates:
        hit = compiled(signature.pattern).search(line) if signature.pattern else None
        stated = hit.groupdict().get("rank") if hit is not None else None
        if stated and len(stated) <= MOST_DIGITS:
            return int(stated)
    if prefix is not None:
        return prefix
    inside = rank_in(line)
    return inside if inside is not None else file


def _add_clues(text: str, result: Scan) -> None:
    """Add the clues and programs that a text names."""
    for known, phrases in ((result.clues, clues()), (result.programs, programs())):
        known |= {
            name
            for name, words in phrases.items()
            if name not in known and any(word in text for word in words)
        }


def _add_facts(
    region: _Region, found: Mapping[tuple[int, int], Sequence[bytes]], result: Scan
) -> None:
    """Add the lines that ``run_log`` reads, with the config that follows one of them."""
    for (start, end), phrases in found.items():
        if len(result.facts) >= MOST_FACTS:
            break
        if not any(phrase in _FACTS for phrase in phrases):
            continue
        line = without_prefix(region.decoded(start, min(end, start + LONGEST)))[0]
        result.facts.append(line)
        if line.rstrip().endswith("json = {"):
            rest = region.decoded(end + 1, end + 1 + LOOKAHEAD).splitlines()[:CONFIG_LINES]
            result.facts += [without_prefix(part)[0] for part in rest]
