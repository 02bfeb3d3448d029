"""Lines of training logs: prefixes of launchers, ranks, times, terminal codes, tracebacks."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,512}(?:\x07|\x1b\\)|[@-Z\\-_])"
)
"""Colors, cursor movements and window titles."""
_PREFIXES = (
    ("]", re.compile(r"\[(?:rank|default|trainer)(?P<rank>\d{1,6})\]:? ?")),
    ("]", re.compile(r"\[\d{1,6},(?P<rank>\d{1,6})\](?:<std(?:out|err)>)?: ?")),
    (": ", re.compile(r" {0,5}(?P<rank>\d{1,6}): (?=\S|  )")),
    ("pid=", re.compile(r"\((?:[\w.:]{1,60} )?pid=\d{1,10}(?:, ip=[\d.]{1,40})?\) ?")),
    ("[pod/", re.compile(r"\[pod/[\w./-]{1,200}\] ?")),
    (" | ", re.compile(r"[\w.-]{1,80}[-_]\d{1,4} {1,40}\| {1,2}(?=\S|  )")),
    ("std", re.compile(r"std(?:out|err): ")),
    (
        "] ",
        re.compile(r"(?:ERROR|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,80}:\d{1,6}\] ?"),
    ),
    (" | ", re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| \w{1,10} \| [\w.]{1,60} \| ")),
)
"""Text that occurs in each, and the pattern: torchrun and torch, mpirun, srun, Ray, Kubernetes,
docker compose, captured streams, vLLM, loguru."""
_WITHOUT_SOURCE = (
    (
        ":",
        re.compile(
            r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
            r"(?: std(?:out|err) [FP])?(?! ?\[| ?- | ?\| ) ?"
        ),
    ),
    (
        "%|",
        re.compile(r"\s*(?:[\w ()-]{1,40}: +)?\d{1,3}%\|[^|]{0,400}\|[^\[\]]{0,60}\[[^\]]{0,60}\]"),
    ),
)
"""Times, and tqdm's bars: the same source prints lines with others."""
_HEAD = 200
"""Characters in which prefixes are searched."""
_HOST = re.compile(r"([\w][\w.-]{0,63}): ")
_REPEATED = re.compile(r" \[repeated \d{1,9}x across cluster\].{0,200}$")
_RANK_INSIDE = re.compile(r"\bRank (\d{1,6})\]|\bon rank (\d{1,6})\b", re.ASCII)
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"attempt_\d+[/\\](\d{1,6})[/\\]std(?:out|err)\.log$")
_LAST_NUMBER = re.compile(
    r"(?:trace|dump|stack|py-?spy|worker|log)[-_.]?(\d{1,6})(?:\.\w+)?$", re.I
)
_SAMPLE = re.compile(
    r"""\s*\[?\{.*?['"](?:content|prompt|instruction|question|answer|conversations|messages|text|"""
    r"""completion|response|chosen|rejected)['"]\s*:"""
)
_TIME = re.compile(
    r"(?<!\d)\d{4}[-/](\d\d)[-/](\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?"
    r"|\[?[EWIF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})"
)
_DAYS_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_FRAME = re.compile(r'\s*File "([^"\n]{1,400})", line (\d{1,9})(?:, in (.{1,200}))?')
_RICH_FRAME = re.compile(r"│ (/\S{1,400}):(\d{1,9}) in ([^\s│]{0,200})")
_RICH_SOURCE = re.compile(r"│ ❱ {1,4}\d{1,6} │?\s*(.*?)\s*│?$")
_HEADER = "Traceback (most recent call last)"
_HANDLED = ("Exception ignored in", "--- Logging error ---", "exception was never retrieved")
_SECRETS = (
    (re.compile(r"\b(?:hf|ghp|gho|glpat|sk|xox[bap])[_-][\w-]{8,200}"), "TOKEN"),
    (re.compile(r"\b[0-9a-fA-F]{40}\b"), "TOKEN"),
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "MAIL"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), "ADDRESS"),
    (re.compile(r"(?<![\w/.])(?:~|/|[A-Za-z]:\\)[\w.@+~ -]{0,80}(?:[/\\][\w.@+~-]{1,120})+"), ""),
    (
        re.compile(r"\b(?:[a-z][\w-]{0,62}\.){1,8}(?:com|net|org|io|edu|gov|local|internal)\b"),
        "HOST",
    ),
    (re.compile(r"(?<=host '|host: )[\w.-]{1,80}|(?<=host      : )[\w.-]{1,80}"), "HOST"),
)
"""What ``redacted`` replaces; of a path, the name of the file remains."""


class Line(NamedTuple):
    """A line without the prefixes of launchers."""

    source: str
    """The prefixes: lines with the same ones are of the same process."""
    rank: int | None
    text: str


class Frame(NamedTuple):
    """A place that a traceback names."""

    file: str
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        return f"{self.file} in {self.function}: {self.source}"


class Traceback(NamedTuple):
    """What a process printed before an error."""

    text: str
    frames: tuple[Frame, ...] = ()
    is_handled: bool = False
    """Python, asyncio or logging printed it and continued."""


def shortened(text: str, longest: int) -> str:
    """Return a text of at most ``longest`` characters, with an ellipsis if it is cut."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def redacted(text: str) -> str:
    """Return a text without paths, host names, addresses, tokens and mail addresses."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(lambda hit, word=replacement: word or _file_name(hit[0]), text)
    return text


def redacted_values(value: Any) -> Any:
    """Return a value whose texts, except names of entries, are redacted."""
    if isinstance(value, dict):
        named = cast("dict[str, Any]", value)
        return {name: redacted_values(each) for name, each in named.items()}
    if isinstance(value, Frame):
        return Frame(*map(redacted_values, value))
    if isinstance(value, tuple):
        return tuple(map(redacted_values, cast("tuple[Any, ...]", value)))
    if isinstance(value, list):
        return [redacted_values(each) for each in cast("list[Any]", value)]
    return redacted(value) if isinstance(value, str) else value


def _file_name(path: str) -> str:
    return "PATH/" + path.replace("\\", "/").rsplit("/", 1)[-1]


def split(line: str, host: str = "") -> Line:
    """Return a line without the prefixes of launchers, of ``host`` too, and what they state."""
    rank: int | None = None
    source = ""
    if host and line.startswith(f"{host}: "):
        source, line = host, line[len(host) + 2 :]
    for _ in range(5):
        hit, has_source = _prefix(line)
        if hit is None:
            break
        if has_source:
            source += hit[0].strip()
            rank = int(hit["rank"]) if rank is None and "rank" in hit.re.groupindex else rank
        line = line[hit.end() :]
    if source.startswith("("):
        line = _REPEATED.sub("", line)
    return Line(source, rank, line)


def _prefix(line: str) -> tuple[re.Match[str] | None, bool]:
    """Return the first prefix of a line, and whether it identifies a source."""
    head = line[:_HEAD]
    for patterns in (_PREFIXES, _WITHOUT_SOURCE):
        for mark, pattern in patterns:
            if mark in head and (hit := pattern.match(line)) is not None and hit.end():
                return hit, patterns is _PREFIXES
    return None, False


def without_prefix(line: str) -> tuple[str, int | None]:
    """Return a line without the prefixes of launchers, and the rank they state."""
    found = split(line)
    return found.text, found.rank


def host_of(line: str, before: str) -> str:
    """Return the host that pdsh prints before each line, if it is one."""
    hit = _HOST.match(line)
    if hit is None:
        return ""
    marks = (f"\n{hit[0]}{_HEADER}", f'\n{hit[0]}  File "')
    return hit[1] if any(mark in f"\n{before}" for mark in marks) else ""


def own_lines(text: str, source: str, host: str) -> Iterator[str]:
    """Yield the lines of one process, without prefixes."""
    for raw in text.splitlines():
        line = split(raw, host)
        if line.source == source and (line.text or not raw):  # a bar is not a line
            yield line.text


def traceback_of(before: Iterable[str]) -> Traceback:
    """Return the traceback that ends the lines of a process."""
    lines = list(before)
    starts = [at for at, line in enumerate(lines) if _HEADER in line]
    # Ranks without prefixes may print their headers in between: go back to one with frames.
    found = (at for at in reversed(starts) if any(map(_FRAME.match, lines[at:])))
    start = next(found, 0)
    kept = lines[start:]
    above = lines[max(0, start - 3) : start]
    is_handled = any(phrase in line for line in above for phrase in _HANDLED)
    return Traceback("\n".join(kept), tuple(_frames(kept)), is_handled)


def _frames(lines: list[str]) -> Iterator[Frame]:
    for at, line in enumerate(lines):
        following = lines[at + 1 : at + 12]
        if (hit := _FRAME.match(line)) is not None:
            source = next((each.strip() for each in following[:3] if each.strip()), "")
            source = "" if source.startswith('File "') else source
            yield Frame(hit[1].replace("\\", "/"), int(hit[2]), hit[3] or "", source)
        elif (hit := _RICH_FRAME.search(line)) is not None:
            marked = filter(None, map(_RICH_SOURCE.search, following))
            yield Frame(hit[1], int(hit[2]), hit[3], next((one[1] for one in marked), ""))


def is_sample(line: str) -> bool:
    """Return whether a line is a printed sample of a data set, which may quote errors."""
    return _SAMPLE.match(line) is not None


def rank_in(line: str) -> int | None:
    """Return the rank that a message of torch states: ``[Rank 3]``, ``on rank 3``."""
    hit = _RANK_INSIDE.search(line)
    return int(hit[1] or hit[2]) if hit else None


def rank_in_name(path: str) -> int | None:
    """Return the rank of a file name: ``run_rank3.log``, ``attempt_0/3/stderr.log``."""
    name = path.replace("\\", "/")
    hit = _RANK_FOLDER.search(name)
    if hit is None:
        for part in reversed(name.split("/")[-2:]):
            hit = _RANK_IN_NAME.search(part)
            if hit is not None:
                break
    hit = hit or _LAST_NUMBER.search(name.rsplit("/", 1)[-1])
    return int(hit[1]) if hit else None


def last_time(text: str) -> float | None:
    """Return the last time in a text, in seconds since January 1; None without one.

    torch prints times without a year, so years are ignored.
    """
    times = list(_TIME.finditer(text))
    if not times:
        return None
    found = times[-1]
    parts = found.groups()[:6] if found[1] else found.groups()[6:]
    month, day, hour, minute, second = (int(part) for part in parts[:5])
    if not 1 <= month <= 12:
        return None
    fraction = float(f"0.{parts[5]}") if parts[5] else 0.0
    days = _DAYS_BEFORE[month - 1] + day
    return ((days * 24 + hour) * 60 + minute) * 60 + second + fraction
