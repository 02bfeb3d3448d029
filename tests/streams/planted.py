"""Races planted in the engine: a line of a function is replaced while a test runs.

The function keeps its identity and line numbers, so that whoever has imported it runs the
replaced line and reports name the real one.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from streams.cases import OPTIMIZER, PARAMETERS, Scaled, Settings, case
from training import models


@dataclass(frozen=True, slots=True)
class Planted:
    """``text``, once in ``function`` of ``module``, is replaced by ``replacement``.

    ``lines``: parts of the two places that the report must name.
    """

    name: str
    function: str
    text: str
    replacement: str
    lines: tuple[str, str]
    config: Settings
    loops: tuple[str, ...] = ("windows",)
    model: Callable[[], Any] = field(default=models.tied)
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])

    def __str__(self) -> str:
        return self.name


def planted_code(function: FunctionType, text: str, replacement: str) -> CodeType:
    """Return the code of ``function`` with ``replacement`` for ``text``, on the same lines."""
    code = function.__code__
    source = Path(code.co_filename).read_text()
    lines = source.splitlines(keepends=True)
    last = max(line for _, _, line in code.co_lines() if line)
    body = "".join(lines[code.co_firstlineno - 1 : last])
    if body.count(text) != 1:
        raise ValueError(f"{function.__qualname__} contains {text!r} {body.count(text)} times")
    start = sum(map(len, lines[: code.co_firstlineno - 1])) + body.index(text)
    changed = source[:start] + replacement + source[start + len(text) :]
    return _find(compile(changed, code.co_filename, "exec"), code)


def _find(code: CodeType, wanted: CodeType) -> CodeType:
    found = [*_all(code)]
    names = (wanted.co_qualname, wanted.co_firstlineno)
    return next(each for each in found if (each.co_qualname, each.co_firstlineno) == names)


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all(constant)


@contextmanager
def replaced_line(planted: Planted) -> Iterator[None]:
    """Plant a race inside."""
    module, _, path = planted.function.partition(":")
    function: Any = import_module(f"dsengine.{module}")
    for name in path.split("."):
        function = getattr(function, name)
    function = getattr(function, "__wrapped__", function)
    original = function.__code__
    function.__code__ = planted_code(function, planted.text, planted.replacement)
    try:
        yield
    finally:
        function.__code__ = original


_COPY, _EVENT = "staged.copy_(piece, non_blocking=True)", "arrived = recorded_event(piece.device)"
_INDENT = "\n" + 12 * " "
PLANTED = (
    Planted(
        "a staged gradient is read before it has arrived",
        "tiers.staging:Staging._empty",
        "arrived.synchronize()",
        "pass",
        ("copy_ at tiers/staging.py", "tiers/accumulation.py"),
        case(2, offload_optimizer=OPTIMIZER),
    ),
    Planted(
        "the event of a staged gradient is recorded before its copy",
        "tiers.staging:Staging.to_host",
        _COPY + _INDENT + _EVENT,
        _EVENT + _INDENT + _COPY,
        ("copy_ at tiers/staging.py", "tiers/accumulation.py"),
        case(3, offload_optimizer=OPTIMIZER),
    ),
    Planted(
        "a buffer is free before it has been read",
        "tiers.staging:Staging.to_host",
        "self._submit(arrived, consume, destination, staged, buffer)",
        "self._free.put(buffer); self._submit(arrived, consume, destination, staged, buffer)",
        ("tiers/accumulation.py", "copy_ at tiers/staging.py"),
        case(1, offload_optimizer=OPTIMIZER),
    ),
    Planted(
        "a buffer is refilled before its copy to the device",
        "tiers.staging:Staging.to_device",
        "self._submit(recorded_event(destination.device),",
        "self._submit(None,",
        ("copy_ at tiers/staging.py", "copy_ at tiers/staging.py"),
        case(2, 1, offload_optimizer=OPTIMIZER),
    ),
    Planted(
        "two threads add to one sum",
        "tiers.staging:Staging._submit",
        "self._threads[self._thread_of.setdefault(target.data_ptr(), next_thread)]",
        "self._threads[len(self._pending) // 5 % THREADS]",
        ("tiers/accumulation.py", "tiers/accumulation.py"),
        case(2, offload_optimizer=OPTIMIZER),
        sizes={"PIECES": 64},
    ),
    Planted(
        "sums are read before the threads have finished",
        "tiers.staging:Staging.wait",
        "future.result()",
        "future.done()",
        ("tiers/accumulation.py", "(foreach_norm)"),
        case(2, offload_optimizer=OPTIMIZER),
    ),
    Planted(
        "a tile is updated before it is read from its file",
        "tiers.nvme:FileStorage._load_tile",
        "wait(self._transfers.pop(buffer, []))",
        "self._transfers.pop(buffer, [])",
        ("read from a file at tiers/nvme.py", "(step)"),
        case(2, offload_optimizer={"device": "nvme"}),
    ),
    Planted(
        "a buffer is refilled while its last tile is written",
        "tiers.nvme:FileStorage._wait_all",
        "wait(self._transfers.pop(buffer))",
        "self._transfers.pop(buffer)",
        ("write to a file at tiers/nvme.py", "read from a file at tiers/nvme.py"),
        case(3, offload_optimizer={"device": "nvme"}),
    ),
    Planted(
        "a full parameter is used before it is gathered",
        "sharding.unsharded_units:UnshardedUnits._refresh",
        "gather.wait()",
        "pass",
        ("all_gather at torch_private/groups.py", " at "),
        case(2),
        sizes={"PACKED_BELOW": 0},
    ),
    Planted(
        "a packed gather is unpacked before it has arrived",
        "sharding.unsharded_units:UnshardedUnits._refresh",
        "gather.wait()",
        "pass",
        ("all_gather at torch_private/groups.py", "split_with_sizes_copy"),
        case(1),
    ),
    Planted(
        "a scaled reduction is used before it has arrived",
        "sharding.reduction:ScaledReduceScatter.__call__",
        "op=dist.ReduceOp.SUM, group=group)",
        "op=dist.ReduceOp.SUM, group=group, async_op=True)",
        ("reduce_scatter at sharding/reduction.py", " at "),
        case(3, precision="scaled"),
    ),
    Planted(
        "gradients of scalars are used before they have arrived",
        "sharding.indivisible:Indivisible.reduce",
        "dist.all_reduce(message, group=self._group)",
        "dist.all_reduce(message, group=self._group, async_op=True)",
        ("all_reduce at sharding/indivisible.py", " at "),
        case(3),
        model=Scaled,
    ),
    Planted(
        "a late reduction is not waited for",
        "torch_private.units:reduce_late_gradients",
        "group.finalize_backward()",
        "pass",
        ("_fully_shard/_fsdp_common.py", "(foreach_norm)"),
        case(3, 1),
        loops=("windows", "coalesced"),
    ),
    Planted(
        "a shard is written while an evaluation still gathers it",
        "sharding.fully_sharded:FullySharded.forward",
        "wait_for_stream(self._device)",
        "pass",
        ("(all_gather_inputs)", " at "),
        case(3, offload_param=PARAMETERS),
        loops=("windows", "evaluation"),
    ),
    Planted(
        "a checkpoint is written before its copies have arrived",
        "checkpoints.save:Staging.take",
        "wait_for_device(device)",
        "pass",
        ("copy_ at checkpoints/save.py", "write of a checkpoint"),
        case(2),
        loops=("windows", "saved"),
    ),
)
