"""Iterating over full weights on all ranks together, with bounded memory.

[Note: lockstep]
A rank that leaves the iteration would let the others wait for it in a gather. So before each
bucket, and at the end, the ranks exchange what they are about to do, over a group of their own. If
one has stopped, or iterates with other arguments, all ranks raise the same error, and no gather
begins. A rank stops when its iterator is closed or dropped, or when it calls another method of the
engine.
"""

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from dsengine.checkpoints.export.conversion import (
    Component,
    Conversion,
    WeightMetadata,
    components_of,
    with_aliases,
)
from dsengine.checkpoints.export.full_weights import exported_dtypes, full_copy
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.communication.peers import in_phase

DEFAULT_BUCKET_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class WeightExport:
    """Weights to export: ``sources``, full or sharded, by in-memory name, and their conversion.

    ``call``: describes the arguments, for comparison between ranks.
    """

    call: str
    sources: Mapping[str, Tensor]
    dtypes: Mapping[str, torch.dtype]
    aliases: Mapping[str, str]
    convert: Conversion
    components: Sequence[Component]

    @classmethod
    def of(
        cls,
        call: str,
        sources: Mapping[str, Tensor],
        dtype: torch.dtype | None,
        aliases: Mapping[str, str],
        convert: Conversion,
    ) -> "WeightExport":
        """Plan an export; floating-point tensors are cast to ``dtype``. No communication."""
        dtypes = exported_dtypes(sources, dtype)
        empty = {
            name: torch.empty(tensor.shape, dtype=dtypes[name], device="meta")
            for name, tensor in sources.items()
        }
        return cls(call, sources, dtypes, aliases, convert, components_of(empty, aliases, convert))

    @property
    def metadata(self) -> list[WeightMetadata]:
        """Name, dtype and shape of each tensor, in the order of the iteration."""
        return [output for component in self.components for output in component.outputs]

    @property
    def digest(self) -> str:
        """Digest of ``metadata``."""
        return sha256(repr(self.metadata).encode()).hexdigest()

    def buckets(self, nbytes: int) -> list[list[Component]]:
        """Divide the components, in order, into buckets of at most ``nbytes`` or one component."""
        buckets: list[list[Component]] = []
        filled = 0
        for component in self.components:
            if not buckets or filled + component.nbytes > nbytes:
                buckets.append([])
                filled = 0
            buckets[-1].append(component)
            filled += component.nbytes
        return buckets

    @torch.no_grad()
    def gather(self, component: Component) -> list[tuple[str, Tensor]]:
        """Return the outputs of ``component``, each in memory of its own. Collective."""
        sources = component.sources
        full = {name: full_copy(self.sources[name], self.dtypes[name]) for name in sources}
        if component.is_renaming:
            return [(component.outputs[0].name, full[sources[0]])]
        inputs = with_aliases(full, self.aliases)
        full.clear()
        converted = self.convert(inputs)
        inputs.clear()
        return [(name, _own(converted.pop(name))) for name, _, _ in component.outputs]


def _own(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if it is a part of a larger one."""
    if tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes():
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


class _Intent(NamedTuple):
    """What a rank is about to do."""

    call: str
    digest: str
    action: str
    """"gather", "end" or "stop"."""
    taken: int
    """Tensors that its caller has received."""


class WeightIterator(Iterator[tuple[str, Tensor]]):
    """Yields (name, full tensor) on all ranks; see ``Engine.iter_weights``.

    ``counters``: of the engine, for messages about failed ranks. ``failures`` receives the error of
    an iterator that was dropped.
    """

    def __init__(
        self,
        export: WeightExport,
        bucket_bytes: int,
        group: CheckpointGroup,
        counters: Any,
        failures: list[BaseException],
    ) -> None:
        self.counters = counters
        self._export = export
        self._buckets = deque(export.buckets(bucket_bytes))
        self._group = group
        self._failures = failures
        self._gathered: deque[tuple[str, Tensor]] = deque()
        self._digest = export.digest
        self._taken = 0
        self._has_ended = False

    def __next__(self) -> tuple[str, Tensor]:
        if not self._gathered and not self._has_ended:
            self._advance()
        if not self._gathered:
            raise StopIteration
        self._taken += 1
        return self._gathered.popleft()

    def close(self) -> None:
        """End the iteration on this rank.

        Collective unless the iteration has ended. Raises RuntimeError on every rank if other ranks
        continue, or if tensors remain on some.
        """
        if not self._has_ended:
            self._leave()

    @in_phase("iter_weights")
    def _advance(self) -> None:
        """Gather the next bucket, or end with the other ranks."""
        self._agree("gather" if self._buckets else "end")
        if self._buckets:
            for component in self._buckets.popleft():
                self._gathered += self._export.gather(component)
        else:
            self._has_ended = True

    @in_phase("iter_weights")
    def _leave(self) -> None:
        is_complete = not self._buckets and not self._gathered
        self._buckets.clear()
        self._gathered.clear()
        self._has_ended = True
        self._agree("end" if is_complete else "stop")

    def _agree(self, action: str) -> None:
        """Raise the same error on every rank unless all are about to do the same."""
        intent = _Intent(self._export.call, self._digest, action, self._taken)
        try:
            intents = self._group.gather(intent)
            _compare(intents, len(self._export.metadata))
        except BaseException:
            self._buckets.clear()
            self._has_ended = True
            raise

    def __del__(self) -> None:
        if getattr(self, "_has_ended", True) or sys.is_finalizing():
            return
        try:
            self.close()
        except Exception as error:  # raised by the next method of the engine
            self._failures.append(error)


def _compare(intents: Sequence[_Intent], tensors: int) -> None:
    first = intents[0]
    for rank, intent in enumerate(intents):
        if intent.call != first.call:
            raise ValueError(
                f"rank {rank} calls {intent.call}, but rank 0 calls {first.call}: pass the same "
                "arguments on every rank"
            )
        if intent.digest != first.digest:
            raise ValueError(
                f"iter_weights(): the weights of rank {rank} have other names, dtypes or shapes "
                "than those of rank 0: compare weight_metadata()"
            )
    actions = {intent.action for intent in intents}
    for rank, intent in enumerate(intents):
        if intent.action == "stop" and len(actions) > 1:
            raise RuntimeError(
                f"rank {rank} stopped iter_weights() after {intent.taken} of {tensors} tensors, "
                "other ranks did not: every rank must iterate to the end, also one that does not "
                "use the tensors"
            )


class OpenIteration:
    """The last weight iterator of an engine, and the error it had when it was dropped."""

    def __init__(self) -> None:
        self._last: tuple[ReferenceType[WeightIterator], list[BaseException]] | None = None

    def begin(
        self, export: WeightExport, bucket_bytes: int, group: CheckpointGroup, counters: Any
    ) -> WeightIterator:
        """Return a new iterator."""
        failures: list[BaseException] = []
        iterator = WeightIterator(export, bucket_bytes, group, counters, failures)
        self._last = ref(iterator), failures
        return iterator

    def end(self) -> None:
        """End an iteration that the script has left; raise its error."""
        if self._last is not None:
            (iterator, failures), self._last = self._last, None
            if (current := iterator()) is not None:
                current.close()
            if failures:
                raise failures[0]
