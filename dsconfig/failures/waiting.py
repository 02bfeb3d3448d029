"""Which rank waits for which collective: flight recorder dumps and py-spy stacks."""

import io
import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from dsconfig.failures.diagnosis import Failure
from dsconfig.failures.text import rank_in_name
from dsconfig.source.pointer import is_too_deep, is_too_large

LARGEST = 256 << 20
"""Bytes of a dump that are read."""
_MOST_DIGITS = 19
_PICKLE = (b"\x80\x02}", b"\x80\x03}", b"\x80\x04", b"\x80\x05")
_THREAD = re.compile(r'^Thread .*?"MainThread"', re.MULTILINE)
_FRAME = re.compile(r"^ {4}(\S+) \((.+):(\d+)\)", re.MULTILINE)
_LOCAL_RANK = re.compile(r"--local[_-]rank[= ](\d{1,6})")
_COLLECTIVE = re.compile(
    r"^_?(?:all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|monitored_barrier|all_to_all|"
    r"reduce|scatter|gather|send|recv|isend|irecv|wait|synchronize)(?:_\w+)?$"
)
_PLUMBING = re.compile(r"torch/distributed/|deepspeed/comm/|c10d_logger|nvtx\.py|_contextlib\.py")
_THREADS = (
    "https://github.com/deepspeedai/DeepSpeed/issues/5030",
    "https://github.com/huggingface/accelerate/issues/3104",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What one rank does: the collective it waits for, or None."""

    file: str
    rank: int | None
    line: int
    collective: str | None
    place: str
    """Innermost frame outside of the communication libraries."""
    group: str = ""
    number: int = 0
    """Count of collectives of the group; 0 if unknown."""


def is_dump(data: bytes) -> bool:
    """Return whether a file starts like a pickle or a JSON dump of the flight recorder."""
    if data.startswith(_PICKLE):
        return b"entries" in data or b"version" in data
    return data.lstrip()[:1] == b"{" and b'"entries"' in data and b'"pg_config"' in data


def is_stack(data: bytes) -> bool:
    """Return whether a file starts like the output of ``py-spy dump``."""
    return re.search(
        rb"^Thread [^\n(]*\([^\n)]*\): \"|^Process \d+: ", data, re.MULTILINE
    ) is not None and (b"MainThread" in data)


def of_dump(data: bytes, file: str) -> list[Waiting]:
    """Return what a rank waits for, by group. Raises ValueError for a dump that is not plain."""
    loaded: Any = json.loads(data) if data.lstrip()[:1] == b"{" else plain_containers(data)
    if is_too_deep(loaded) or is_too_large(loaded):
        raise ValueError("the dump is too large")
    content = _mapping(loaded)
    entries = content.get("entries")
    if not isinstance(entries, list):
        raise ValueError("the dump has no entries")
    latest: dict[str, Mapping[str, Any]] = {}
    for entry in map(_mapping, cast("list[Any]", entries)):
        group = _text(entry.get("process_group"))
        earlier = latest.get(group)
        pending = not _is_done(entry, content)
        is_older = earlier is not None and pending and _number(entry) < _number(earlier)
        if earlier is None or _is_done(earlier, content) or is_older:
            latest[group] = entry
    return [_of_entry(entry, group, file, content) for group, entry in latest.items()]


def _is_done(entry: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Return whether a collective ended: by its state, or by the counters of its group."""
    if entry.get("state") == "completed":
        return True
    status = _mapping(_mapping(content.get("pg_status")).get(str(entry.get("pg_id"))))
    completed = status.get("last_completed_collective")
    if isinstance(completed, str) and completed.isdecimal() and len(completed) < _MOST_DIGITS:
        completed = int(completed)
    return _is_count(completed) and _number(entry) <= completed


def _of_entry(
    entry: Mapping[str, Any], group: str, file: str, content: Mapping[str, Any]
) -> Waiting:
    frames = entry.get("frames")
    places = [
        f"{_text(frame.get('name'))} ({_text(frame.get('filename'))}:{_count(frame.get('line'))})"
        for frame in map(_mapping, cast("list[Any]", frames) if isinstance(frames, list) else [])
        if not _PLUMBING.search(_text(frame.get("filename")))
    ]
    name = _text(entry.get("profiling_name")).partition(":")[2]
    sizes = json.dumps(entry.get("input_sizes"))[:60]
    done = _is_done(entry, content)
    return Waiting(
        file=file,
        rank=rank_in_name(file),
        line=1,
        collective=None if done else f"{name} {sizes}",
        place=places[0] if places else "",
        group=group,
        number=_number(entry),
    )


def of_stack(text: str, file: str) -> list[Waiting]:
    """Return what the main thread of each process in a ``py-spy dump`` does."""
    starts = [hit.start() for hit in re.finditer(r"^Process \d+:", text, re.MULTILINE)] or [0]
    found: list[Waiting] = []
    line, counted = 1, 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = text[start:end]
        thread = _THREAD.search(part)
        if thread is None:
            continue
        stack = part[thread.end() :].partition("\nThread ")[0]
        frames = list(_FRAME.finditer(stack))
        if not frames:
            continue
        inner = [hit for hit in frames[:12] if _COLLECTIVE.match(hit[1].rsplit(".", 1)[-1])]
        waits = bool(inner) and any(_PLUMBING.search(hit[2]) for hit in frames[:12])
        outside = next((hit for hit in frames if not _PLUMBING.search(hit[2])), frames[0])
        if not waits:
            outside = frames[0]
        local = _LOCAL_RANK.search(part)
        offset = start + thread.end() + outside.start()
        line, counted = line + text.count("\n", counted, offset), offset
        found.append(
            Waiting(
                file=file,
                rank=int(local[1]) if local else rank_in_name(file),
                line=line,
                collective=inner[-1][1].rsplit(".", 1)[-1] if waits else None,
                place=f"{outside[1]} ({outside[2]}:{outside[3]})",
            )
        )
    return found


def compare(states: Sequence[Waiting]) -> Iterator[Failure]:
    """Yield one failure for each group whose ranks do not wait for the same collective."""
    by_group: dict[str, list[Waiting]] = {}
    for state in states:
        by_group.setdefault(state.group, []).append(state)
    for members in by_group.values():
        locked = [state for state in members if _LOCK.search(state.place)]
        if locked and len(locked) == len(members):
            yield _failure("stale-build-lock", locked[0], members, _DELETE_LOCK)
            continue
        places = Counter(_what(state) for state in members)
        if len(members) < 2 or (len(places) == 1 and members[0].collective is None):
            continue
        if len(places) == 1:
            yield _failure("ranks-wait-together", members[0], members, _SLOW)
            continue
        absent = [state for state in members if state.collective is None]
        usual = places.most_common(1)[0][0]
        behind = min((state.number for state in members if state.number), default=0)
        chosen = absent or [state for state in members if state.number and state.number == behind]
        odd = next((state for state in chosen if _what(state) != usual), None)
        odd = odd or next(state for state in members if _what(state) != usual)
        name = "rank-outside-collective" if odd.collective is None else "ranks-in-other-collectives"
        yield _failure(name, odd, members, _ABSENT if odd.collective is None else _OTHER)


_LOCK = re.compile(r"file_baton\.py")
_DELETE_LOCK = (
    "Stop the run and delete the lock file in the build directory of torch extensions "
    "(~/.cache/torch_extensions/*/*/lock): a build that was interrupted left it behind, and all "
    "ranks wait for it."
)
_ABSENT = (
    "Make this rank reach the same collective: its frame is where it runs something that the "
    "others do not (data loading, saving, evaluation, a handled error)."
)
_OTHER = (
    "Make all ranks run the same modules in the same order: MoE routing, inputs without images, "
    "early exits and conditions on the rank are the usual reasons. At stage 3, gather such modules "
    "as a unit (set_z3_leaf_modules)."
)
_SLOW = (
    "All ranks wait in the same collective: the network or one GPU is the reason, or a rank is "
    "missing from the files. Run with NCCL_DEBUG=INFO and pass the files of all ranks."
)


_APART = "the ranks{group} do not proceed together"
_CAUSES = {
    "rank-outside-collective": _APART,
    "ranks-in-other-collectives": _APART,
    "ranks-wait-together": "all ranks{group} wait for the same collective",
    "stale-build-lock": "the ranks{group} wait for a lock in the build directory of torch "
    "extensions, which a build that was interrupted left behind",
}


def _what(state: Waiting) -> tuple[str | None, int]:
    """Return what makes two ranks wait for the same: the collective and its number."""
    if state.number:
        return (state.collective, state.number)
    return (state.collective and f"{state.collective} {state.place}", 0)


def _failure(name: str, odd: Waiting, members: Sequence[Waiting], remedy: str) -> Failure:
    """Return a failure that lists what each rank does."""
    groups: dict[str, list[str]] = {}
    for state in members:
        waits = f"{state.collective} number {state.number}" if state.number else state.collective
        if state.collective is None:
            text = (
                f"not in a collective, at {state.place}"
                if not state.number
                else (f"no collective after number {state.number}")
            )
        else:
            text = f"{waits}" + (f", called from {state.place}" if state.place else "")
        groups.setdefault(text, []).append("?" if state.rank is None else str(state.rank))
    parts = [f"rank {', '.join(ranks)}: {text}" for text, ranks in groups.items()]
    group = f" of group {odd.group}" if odd.group else ""
    return Failure(
        signature=name,
        file=odd.file,
        line=odd.line,
        rank=odd.rank,
        cause=f"{_CAUSES[name].format(group=group)}: {'; '.join(parts)}",
        remedy=remedy,
        threads=_THREADS,
        text=odd.place,
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _number(entry: Mapping[str, Any]) -> int:
    return _count(entry.get("collective_seq_id"))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _count(value: Any) -> int:
    """Return a count of a dump, or 0 for anything else."""
    return value if _is_count(value) else 0


def _text(value: Any) -> str:
    """Return a text of a dump; of a group, its description."""
    if isinstance(value, (list, tuple)):
        parts = cast("Sequence[Any]", value)
        value = parts[-1] if parts else ""
    return value[:300] if isinstance(value, str) else ""


_TYPED = {
    ("torch.jit._pickle", "build_intlist"),
    ("torch.jit._pickle", "build_doublelist"),
    ("torch.jit._pickle", "build_boollist"),
    ("torch.jit._pickle", "restore_type_tag"),
}
"""Functions that torch writes for typed containers; they return their first argument."""
_InPython: Any = vars(pickle)["_Unpickler"]
"""Python's unpickler: C's allocates as much memory as a damaged file states."""


class _First:
    """A function that returns its first argument, without attributes that a file could set."""

    __slots__ = ()

    def __call__(self, value: object, *others: object) -> object:
        return value


class _ContainerUnpickler(_InPython):
    """Imports nothing: returns a typed container for a known name and rejects all others."""

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        if (module, name) not in _TYPED:
            raise ValueError(f"the pickle names {module}.{name}")
        return _First()


def plain_containers(data: bytes) -> Any:
    """Return the containers of a pickle. Raises ValueError for anything else."""
    try:
        return _ContainerUnpickler(io.BytesIO(data)).load()
    except ValueError:
        raise
    except Exception as error:  # damaged data can raise anything
        raise ValueError(f"the pickle is damaged: {type(error).__name__}: {error}") from None
