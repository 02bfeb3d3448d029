"""Scan a log once, in blocks: matches of signatures, clues, and lines with facts.

Substrings are searched in whole blocks; only lines that contain one are decoded. The time is linear
in the size of the log, and the memory does not depend on it.
"""

import codecs
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import BinaryIO

from dsconfig.facts import run_log
from dsconfig.failures.clues import CLUES, PROGRAMS
from dsconfig.failures.signature import Signature, compiled
from dsconfig.failures.signatures import SIGNATURES
from dsconfig.failures.text import ESCAPES, is_sample, last_time, rank_in, without_prefix

BLOCK = 1 << 20
LOOKBACK = 32 << 10
"""Bytes before a line that belong to its traceback."""
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
MOST_DIGITS = 6
"""Digits of a rank."""
RECOVERED = 3
"""Lines of progress after an error that show that the run continued."""
PROGRESS = (b"'loss': ", b'"loss": ', b"SamplesPerSec=")
_FACTS = tuple(phrase.encode() for phrase in run_log.PHRASES)
_LINE_END = re.compile(rb"[\n\r]")
EXCEPTION = re.compile(
    r"(?:[\w.]{1,80}: )?((?:\w{1,60}\.){0,8}\w{0,60}(?:Error|Exception))(?:: |$)"
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
    before: str
    after: str
    progress: int
    """Lines of progress printed before."""


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
def _words_inside(phrase: bytes) -> tuple[bytes, ...]:
    """Return the words of a phrase that spaces surround: texts without them do not contain it."""
    return tuple(phrase.split()[1:-1])


@cache
def _by_phrase() -> Mapping[bytes, tuple[Signature, ...]]:
    """Return the signatures that a phrase may belong to."""
    found: dict[bytes, list[Signature]] = {}
    for signature in SIGNATURES:
        for phrase in signature.phrases:
            found.setdefault(phrase.encode(), []).append(signature)
    return {phrase: tuple(signatures) for phrase, signatures in found.items()}


def scan(file: BinaryIO, name: str, rank: int | None) -> Scan:
    """Scan an open log to its end."""
    result = Scan(name, rank)
    seen: dict[object, int] = {}
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
        _search(region, result, seen)
        _add_facts(region, result)
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
    decoder = None
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
    block = start + file.read(BLOCK)
    while block:
        following = file.read(BLOCK)
        if decoder is not None:
            block = decoder.decode(block, not following).encode("utf-8", "replace")
        yield (ESCAPES.sub(b"", block) if b"\x1b" in block else block), not following
        block = following


class _Region:
    """The part of a text that is searched, with its context and line numbers."""

    def __init__(self, text: bytes, start: int, end: int, first: int) -> None:
        self.text, self.start, self.end = text, start, end
        self._known, self._line = start, first + text.count(b"\n", 0, start)
        self._counted, self._progress = start, 0
        self._words = frozenset(text[start:end].split())

    def line_at(self, offset: int) -> int:
        """Return the line number at an offset; offsets increase from call to call."""
        self._line += self.text.count(b"\n", self._known, offset)
        self._known = offset
        return self._line

    def lines_with(self, phrases: Iterable[bytes]) -> dict[tuple[int, int], list[bytes]]:
        """Return the bounds of lines that contain a phrase, and the phrases in each."""
        found: dict[tuple[int, int], list[bytes]] = {}
        for phrase in phrases:
            if not self._words.issuperset(_words_inside(phrase)):
                continue
            place = self.text.find(phrase, self.start, self.end)
            while place >= 0:
                bounds = self._bounds(place)
                found.setdefault(bounds, []).append(phrase)
                place = self.text.find(phrase, max(bounds[1], place + 1), self.end)
        return found

    @cached_property
    def _line_ends(self) -> list[int]:
        """Offsets of line ends; carriage returns end lines too."""
        return [end.start() for end in _LINE_END.finditer(self.text, self.start, self.end)]

    def _bounds(self, place: int) -> tuple[int, int]:
        """Return start and end of the line at an offset."""
        following = bisect_left(self._line_ends, place)
        start = self._line_ends[following - 1] + 1 if following else self.start
        end = self._line_ends[following] if following < len(self._line_ends) else self.end
        return start, end

    def progress_before(self, offset: int) -> int:
        """Return the lines of progress in this region before an offset; offsets increase."""
        counted = (self.text.count(phrase, self._counted, offset) for phrase in PROGRESS)
        self._progress += sum(counted)
        self._counted = offset
        return self._progress

    def decoded(self, start: int, end: int) -> str:
        return self.text[max(start, 0) : end].decode("utf-8", "replace")


def _search(region: _Region, result: Scan, seen: dict[object, int]) -> None:
    """Add the matches, exceptions and clues of a region."""
    by_phrase = _by_phrase()
    found = region.lines_with((*by_phrase, b"Error", b"Exception"))
    for (start, end), phrases in sorted(found.items()):
        raw = region.decoded(start, min(end, start + LONGEST))
        line, rank = without_prefix(raw)
        if line.lstrip().startswith("raise ") or is_sample(line):
            # Source code in a traceback, whose message follows; or quoted text.
            continue
        candidates = tuple(
            signature
            for phrase in phrases
            for signature in by_phrase.get(phrase, ())
            if not signature.pattern or compiled(signature.pattern).search(line)
        )
        exception = None if candidates else EXCEPTION.match(line)
        if not candidates and exception is None:
            continue
        rank = _rank(candidates, line, rank, result.rank)
        progress = result.progress + region.progress_before(start)
        key = (tuple(candidates) or (exception and exception[1]), rank)
        if not _is_new(key, progress, seen):
            continue
        before = region.decoded(start - LOOKBACK, start)
        match = Match(
            signatures=tuple(sorted(set(candidates), key=SIGNATURES.index)),
            file=result.file,
            line=region.line_at(start),
            rank=rank,
            time=last_time(raw) or last_time(before),
            text=line.strip(),
            before=before,
            after=region.decoded(end, end + LOOKAHEAD),
            progress=progress,
        )
        (result.matches if candidates else result.exceptions).append(match)
        _add_clues(match.before + raw + match.after, result)
    result.progress += region.progress_before(region.end)


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
    for known, phrases in ((result.clues, CLUES), (result.programs, PROGRAMS)):
        known |= {
            name
            for name, words in phrases.items()
            if name not in known and any(word in text for word in words)
        }


def _add_facts(region: _Region, result: Scan) -> None:
    """Add the lines that ``run_log`` reads, with the config that follows one of them."""
    for start, end in sorted(region.lines_with(_FACTS)):
        if len(result.facts) >= MOST_FACTS:
            break
        line = without_prefix(region.decoded(start, min(end, start + LONGEST)))[0]
        result.facts.append(line)
        if line.rstrip().endswith("json = {"):
            rest = region.decoded(end + 1, end + 1 + LOOKAHEAD).splitlines()[:CONFIG_LINES]
            result.facts += [without_prefix(part)[0] for part in rest]
