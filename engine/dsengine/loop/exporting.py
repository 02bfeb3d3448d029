"""Export of full weights from a running engine, for inference engines of RL loops."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsengine.checkpoints.export.conversion import WeightMetadata
from dsengine.checkpoints.export.full_weights import exported_dtypes
from dsengine.checkpoints.export.iteration import (
    DEFAULT_BUCKET_BYTES,
    OpenIteration,
    WeightExport,
    WeightIterator,
)
from dsengine.checkpoints.export.pretrained import Lora, conversion_for
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.loop.counters import Counters
from dsengine.loop.offload_states import EVERYTHING, MODEL, Offloading
from dsengine.optimizers import Binding
from dsengine.parallel.pipeline.module import refuse_stages
from dsengine.parameters.names import (
    clean_name,
    named_persistent_buffers,
    named_shards,
    own_parameters,
)
from dsengine.parameters.quantized import quantization_constants, quantized_layers
from dsengine.sharding import Sharding

Names = Literal["checkpoint", "module"]


@dataclass(eq=False)
class Exports:
    """Passes on full weights without files.

    ``dtype``: the default of exported floating-point tensors; None keeps each one's own.
    """

    sharding: Sharding
    binding: Binding
    offloading: Offloading
    iteration: OpenIteration
    counters: Counters
    dtype: torch.dtype | None
    _group: CheckpointGroup | None = None

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
        self.iteration.end()
        export = self._export(f"iter_weights({arguments})", dtype, lora, names)
        if self._group is None:
            self._group = CheckpointGroup(saves=False)
        return self.iteration.begin(export, bucket_bytes, self._group, self.counters)

    def weight_metadata(
        self,
        *,
        dtype: torch.dtype | None = None,
        lora: Lora = "merge",
        names: Names = "checkpoint",
    ) -> list[WeightMetadata]:
        """Return (name, dtype, shape) of the tensors of ``iter_weights``. No communication."""
        return self._export("weight_metadata()", dtype, lora, names).metadata

    def _export(
        self, call: str, dtype: torch.dtype | None, lora: Lora, names: Names
    ) -> WeightExport:
        refuse_stages(self.sharding.module, call, "pipeline_exports")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype is {dtype!r}: expected a floating-point torch.dtype")
        for key, value, allowed in (
            ("lora", lora, ("merge", "adapter")),
            ("names", names, ("checkpoint", "module")),
        ):
            if value not in allowed:
                raise ValueError(f"{key} is {value!r}: expected {allowed[0]!r} or {allowed[1]!r}")
        self.offloading.check(MODEL, call)
        target = self.dtype if dtype is None else dtype
        sources, aliases = self._exported_tensors(call, target)
        if names == "checkpoint" and lora == "merge":
            _refuse_quantized(self.sharding.module)
        if names == "module":
            return WeightExport.of(call, sources, target, {}, dict)
        return WeightExport.of(
            call, sources, target, aliases, conversion_for(self.sharding.module, lora)
        )

    def _exported_tensors(
        self, call: str, dtype: torch.dtype | None
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return tensors by name, each tied one once, and the first name by each other name.

        A tensor is the parameter itself if it has the requested dtype, otherwise its master.
        """
        self.sharding.release()
        masters = self.binding.checkpoint_masters()
        current = {
            clean_name(f"{prefix}.{name}" if prefix else name): parameter
            for prefix, module in self.sharding.module.named_modules()
            for name, parameter in own_parameters(module)
        }
        shards = dict(named_shards(self.sharding.module))
        sources: dict[str, Tensor] = {}
        constants = dict(quantization_constants(self.sharding.module))
        own = {name: masters.get(name, shard) for name, shard in shards.items()}
        dtypes = exported_dtypes({**own, **constants}, dtype)
        for name, shard in shards.items():
            master, wanted = own[name], dtypes[name]
            full = [current[name]] if not isinstance(current[name], DTensor) else []
            sources[name] = next((t for t in (*full, shard) if t.dtype is wanted), master)
            if sources[name] is master and master is not shard:
                self.offloading.check(EVERYTHING, call)
        sources |= {**dict(named_persistent_buffers(self.sharding.module)), **constants}
        first = {id(shard): name for name, shard in shards.items()}
        aliases = {
            name: first[id(shard)]
            for name, shard in named_shards(self.sharding.module, remove_duplicate=False)
            if first[id(shard)] != name
        }
        return {name: tensor.detach() for name, tensor in sources.items()}, aliases

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


def _refuse_quantized(module: nn.Module) -> None:
    """Raise ValueError for packed weights, which adapters cannot be merged into exactly."""
    layer = next(quantized_layers(module), None)
    if layer is not None:
        raise ValueError(
            f"{layer.name} has weights that bitsandbytes has packed into {layer.bits} bits: merged "
            "weights would have to be packed again, which changes them. Pass lora='adapter' and "
            "apply the adapter to the base model, or names='module' for the packed weights"
        )
