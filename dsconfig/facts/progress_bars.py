"""Step time according to the progress bars of a log, of tqdm or rich.

A run prints bars for loading, tokenizing, evaluation and saving too; only the one of training
counts. The Trainer's has no description; other programs name it ("Epoch 1", "Steps").
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

_BAR = re.compile(
    r"(?:(?P<percent>\d{1,3})%\|[^|\r\n]{0,400}\|\s*)?(?<![\w/.])(?P<done>\d{1,12})"
    r"(?:/(?P<total>\d{1,12})|it) \[(?P<elapsed>[\d:]{4,12})(?:<[^,\]\r\n]{1,24})?,\s{0,4}"
    r"(?:(?P<number>\d{1,12}(?:\.\d{1,12})?)|\?) ?(?P<unit>s/it|it/s)\b"
)
"""``  5%|▌  | 50/1000 [01:40<31:40,  2.00s/it]``, without a total ``50it [01:40,  2.00s/it]``."""
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,12})?) ?(s/it|it/s)\b")
_TRAINING = re.compile(r"train|epoch|step|iter|loss|episode", re.IGNORECASE)
_OTHER = re.compile(
    r"eval|valid|test|predict|generat|sampl|infer|load|shard|download|fetch|token|map|filter|"
    r"pack|process|cach|sav|writ|convert|quantiz|calibrat|merg|warm",
    re.IGNORECASE,
)
_PREFIX = re.compile(r"^\s*(?:[\[(][^\])]*[\])](?:<std\w{3}>)?\s*:?\s*)+")
"""Of launchers: ``[rank0]:``, ``(RayTrainWorker pid=7)``, ``[1,0]<stderr>:``."""
_LONGEST_DESCRIPTION = 200


@dataclass(frozen=True, slots=True)
class _Reading:
    """One print of a bar, at a place of the text; ``seconds`` per iteration, None if unknown."""

    place: int
    done: int
    total: str | None
    is_complete: bool
    elapsed: int
    seconds: float | None


def seconds_per_iteration(text: str) -> float | None:
    """Return the median step time in seconds of the training bar; None without one.

    Evaluation without a description runs within training or after it, and takes less time: the
    longest bar is that of training.
    """
    bars: dict[str | None, list[_Reading]] = {}
    for reading in _training_readings(text):
        bars.setdefault(reading.total, []).append(reading)
    if not bars:
        return _outside_bars(text)
    training = max(bars.values(), key=lambda bar: max(reading.elapsed for reading in bar))
    last = max(bars.values(), key=lambda bar: bar[0].place)
    failed_at_once = all(reading.seconds is None for reading in last)
    if failed_at_once and training[-1].is_complete and training[-1].place < last[0].place:
        return None  # the complete bar may be one of preprocessing
    known = [reading.seconds for reading in training if reading.seconds is not None]
    return median(known) if known else None


def last_step(text: str) -> int:
    """Return the iteration that the training bar shows last; 0 without one.

    Complete bars may be of preprocessing.
    """
    last = {reading.total: reading for reading in _training_readings(text)}
    return max((bar.done for bar in last.values() if not bar.is_complete), default=0)


def _training_readings(text: str) -> Iterator[_Reading]:
    """Yield the readings of bars without a description, or with one that names training."""
    end = 0
    for hit in _BAR.finditer(text):
        start = max(end, hit.start() - _LONGEST_DESCRIPTION)
        end = hit.end()
        if _names_training(_description(text[start : hit.start()])):
            hours = [int(part or 0) for part in hit["elapsed"].split(":")]
            yield _Reading(
                place=hit.start(),
                done=int(hit["done"]),
                total=hit["total"],
                is_complete=hit["done"] == hit["total"],
                elapsed=sum(part * 60**n for n, part in enumerate(reversed(hours))),
                seconds=_seconds(hit["number"], hit["unit"]),
            )


def _description(before: str) -> str:
    """Return the description of a bar, which ends with a colon, without a launcher's prefix."""
    line = re.split(r"[\r\n]", before)[-1].rstrip()
    return _PREFIX.sub("", line[:-1] + ":").rstrip(": ") if line.endswith(":") else ""


def _names_training(description: str) -> bool:
    """Return whether a description is none or names training, and nothing else."""
    if not re.search(r"[^\W\d_]", description):
        return True
    return bool(_TRAINING.search(description)) and not _OTHER.search(description)


def _outside_bars(text: str) -> float | None:
    """Return the last rate in a line about training that contains no bar of tqdm."""
    seconds = None
    for hit in _RATE.finditer(text):
        line = re.split(r"[\r\n]", text[max(0, hit.start() - _LONGEST_DESCRIPTION) : hit.start()])[
            -1
        ]
        if "%|" not in line and _TRAINING.search(line) and not _OTHER.search(line):
            seconds = _seconds(hit[1], hit[2]) or seconds
    return seconds


def _seconds(number: str | None, unit: str) -> float | None:
    value = float(number or 0)
    if value <= 0:
        return None
    return value if unit == "s/it" else 1 / value
