"""Lines of training logs: prefixes of launchers, ranks, times, terminal codes."""

import re

ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,512}(?:\x07|\x1b\\)|[@-Z\\-_])"
)
"""Colors, cursor movements and window titles."""
_PREFIXES = (
    re.compile(r"\[(?:rank|default|trainer)(?P<rank>\d{1,6})\]:? ?"),
    re.compile(r"\[\d{1,6},(?P<rank>\d{1,6})\]<std(?:out|err)>: ?"),
    re.compile(r" {0,3}(?P<rank>\d{1,6}): (?=\S)"),
    re.compile(r"\((?:\w{1,40} )?pid=\d{1,10}(?:, ip=[\d.]{1,40})?\) ?"),
    re.compile(r"std(?:out|err): "),
    re.compile(r"\s*(?:[\w ()-]{1,40}: +)?\d{1,3}%\|[^|]{0,400}\|[^\[\]]{0,60}\[[^\]]{0,60}\]"),
)
"""torchrun and torch, mpirun, srun, Ray, captured streams, tqdm."""
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


def shortened(text: str, longest: int) -> str:
    """Return a text of at most ``longest`` characters, with an ellipsis if it is cut."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def without_prefix(line: str) -> tuple[str, int | None]:
    """Return a line without the prefixes of launchers, and the rank they state."""
    rank: int | None = None
    for _ in range(4):
        for pattern in _PREFIXES:
            if (hit := pattern.match(line)) is not None and hit.end():
                if "rank" in pattern.groupindex and rank is None:
                    rank = int(hit["rank"])
                line = line[hit.end() :]
                break
        else:
            break
    return line, rank


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
