"""Export of full weights from a running engine, for inference engines of RL loops."""

from typing import Any, Literal
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsengine.checkpoints.export.checkpoint_names import Lora, conversion_for
from dsengine.checkpoints.export.conversion import WeightMetadata
from dsengine.checkpoints.export.full_weights import exported_dtypes
from dsengine.checkpoints.export.iteration import (
    DEFAULT_BUCKET_BYTES,
    WeightExport,
    WeightIterator,
)
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.loop.offload_states import EVERYTHING, MODEL
from dsengine.loop.saving import SavingEngine, model_dtype
from dsengine.parameters.names import (
    clean_name,
    named_persistent_buffers,
    named_shards,
    own_parameters,
)
from dsengine.parameters.quantized import quantization_constants, quantized_layers

Names = Literal["checkpoint", "module"]


class ExportingEngine(SavingEngine):
    """An engine that passes on its full weights without files."""

    _export_group: CheckpointGroup | None = None
    _iteration: tuple[ReferenceType[WeightIterator], list[BaseException]] | None = None
    """The last iterator, and the error it had when it was dropped."""

    def iter_weights(
        self,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        dtype: torch.dtype | None = None,
        lora: Lora = "merge",
        names: Names = "checkpoint",
    ) -> WeightIterator:
        """Return an iterator over (name, full tensor), on the engine's device. Collective.

        Every rank must iterate to the end, in the same order, and may ignore the tensors; each one
        has memory of its own. A bucket of ``bucket_bytes`` (or one larger tensor) is gathered at a
        time; beside it at most two copies of the largest tensor exist, with ``lora="merge"`` three.
        ``dtype``: of floating-point tensors (default: the training precision). ``names``:
        "checkpoint" yields what ``save_pretrained`` writes; "module" the names in memory, like
        ``save_16bit_model``, adapters included. ``lora``: merge adapters of peft into the weights,
        which do not change, or yield only the adapter, like peft's ``save_pretrained``.

        The iterator raises ValueError on every rank if arguments differ, and RuntimeError if a rank
        stops earlier than others. Raises ValueError for other values.
        """
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes is {bucket_bytes}: expected at least 1")
        arguments = f"bucket_bytes={bucket_bytes}, dtype={dtype}, lora={lora!r}, names={names!r}"
        self._end_iteration()
        export = self._export(f"iter_weights({arguments})", dtype, lora, names)
        if self._export_group is None:
            self._export_group = CheckpointGroup(saves=False)
        failures: list[BaseException] = []
        iterator = WeightIterator(export, bucket_bytes, self._export_group, self.counters, failures)
        self._iteration = ref(iterator), failures
        return iterator

    def weight_metadata(
        self,
        *,
        dtype: torch.dtype | None = None,
        lora: Lora = "merge",
        names: Names = "checkpoint",
    ) -> list[WeightMetadata]:
        """Return (name, dtype, shape) of the tensors of ``iter_weights``. No communication."""
        return self._export("weight_metadata()", dtype, lora, names).metadata

    def require_states(self, states: frozenset[Any], call: str) -> None:
        super().require_states(states, call)
        self._end_iteration()

    def _end_iteration(self) -> None:
        """End an iteration that the script has left; raise its error."""
        if self._iteration is not None:
            (iterator, failures), self._iteration = self._iteration, None
            if (current := iterator()) is not None:
                current.close()
            if failures:
                raise failures[0]

    def _export(
        self, call: str, dtype: torch.dtype | None, lora: Lora, names: Names
    ) -> WeightExport:
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype is {dtype!r}: expected a floating-point torch.dtype")
        for key, value, allowed in (
            ("lora", lora, ("merge", "adapter")),
            ("names", names, ("checkpoint", "module")),
        ):
            if value not in allowed:
                raise ValueError(f"{key} is {value!r}: expected {allowed[0]!r} or {allowed[1]!r}")
        super().require_states(MODEL, call)
        target = model_dtype(self) if dtype is None else dtype
        sources, aliases = self._exported_tensors(call, target)
        if names == "checkpoint" and lora == "merge":
            _refuse_quantized(self.module)
        if names == "module":
            return WeightExport.of(call, sources, target, {}, dict)
        return WeightExport.of(call, sources, target, aliases, conversion_for(self.module, lora))

    def _exported_tensors(
        self, call: str, dtype: torch.dtype | None
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return tensors by name, each tied one once, and the first name by each other name.

        A tensor is the parameter itself if it has the requested dtype, otherwise its master.
        """
        self.sharding.release()
        masters = self.checkpointed_masters()
        current = {
            clean_name(f"{prefix}.{name}" if prefix else name): parameter
            for prefix, module in self.module.named_modules()
            for name, parameter in own_parameters(module)
        }
        shards = dict(named_shards(self.module))
        sources: dict[str, Tensor] = {}
        constants = dict(quantization_constants(self.module))
        own = {name: masters.get(name, shard) for name, shard in shards.items()}
        dtypes = exported_dtypes({**own, **constants}, dtype)
        for name, shard in shards.items():
            master, wanted = own[name], dtypes[name]
            full = [current[name]] if not isinstance(current[name], DTensor) else []
            sources[name] = next((t for t in (*full, shard) if t.dtype is wanted), master)
            if sources[name] is master and master is not shard:
                super().require_states(EVERYTHING, call)
        sources |= {**dict(named_persistent_buffers(self.module)), **constants}
        first = {id(shard): name for name, shard in shards.items()}
        aliases = {
            name: first[id(shard)]
            for name, shard in named_shards(self.module, remove_duplicate=False)
            if first[id(shard)] != name
        }
        return {name: tensor.detach() for name, tensor in sources.items()}, aliases

    def _close_files(self) -> None:
        self._end_iteration()
        super()._close_files()
        if self._export_group is not None:
            self._export_group.close()
            self._export_group = None


def _refuse_quantized(module: nn.Module) -> None:
    """Raise ValueError for packed weights, which adapters cannot be merged into exactly."""
    layer = next(quantized_layers(module), None)
    if layer is not None:
        raise ValueError(
            f"{layer.name} has weights that bitsandbytes has packed into {layer.bits} bits: merged "
            "weights would have to be packed again, which changes them. Pass lora='adapter' and "
            "apply the adapter to the base model, or names='module' for the packed weights"
        )
