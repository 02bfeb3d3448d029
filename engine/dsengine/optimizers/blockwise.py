"""bitsandbytes' optimizers, with 32-bit or 8-bit states, on this rank's shards.

[Note: blocks of a shard]
An 8-bit state has one byte per weight, and one fp32 scale per block of 256. The kernels step plain
local shards, so blocks begin with the shard of each rank; at another number of ranks moments are
rounded differently. Whether a weight is large enough for 8 bits depends on its full size, so that
all ranks decide alike. A checkpoint contains the bytes in the layout of the weight, and the scales
of each rank in a row of equal length; they are not converted to another number of ranks.
"""

import sys
from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from dsconfig.features.table import FEATURES
from dsengine.optimizers.binding import Binding
from dsengine.parameters.shards import is_split
from dsengine.torch_private.tensors import local_part

BLOCK = 256
"""Weights with a common scale (bitsandbytes 0.50, optim/optimizer.py)."""
SCALES = ("absmax1", "absmax2")
ELEMENTWISE_UPDATES = frozenset({"adam", "lion", "momentum", "rmsprop", "adagrad"})
"""Kernels by name (``optimizer_name``) that need no norm of a full weight."""


def is_blockwise(optimizer: Optimizer) -> bool:
    """Whether this is an optimizer of bitsandbytes that can step shards."""
    settings: Any = getattr(optimizer, "args", None)
    return (
        type(optimizer).__module__.startswith("bitsandbytes.")
        and getattr(optimizer, "optimizer_name", "") in ELEMENTWISE_UPDATES
        and not getattr(settings, "max_unorm", 0.0)
    )


class BlockwiseBinding(Binding):
    """Lets an optimizer of bitsandbytes step this rank's shards."""

    REPLICATED_STATES: ClassVar = frozenset({"qmap1", "qmap2"})

    def __init__(self, optimizer: Optimizer, masters: Mapping[str, nn.Parameter]) -> None:
        if any(map(is_split, masters.values())):
            raise ValueError(FEATURES["blockwise_of_parts"].text)
        super().__init__(optimizer, masters)
        settings_of: Any = optimizer.get_config  # pyright: ignore[reportAttributeAccessIssue]

        def by_full_size(group_index: int, index: int, group: dict[str, Any]) -> dict[str, Any]:
            settings = settings_of(group_index, index, group)
            shard = optimizer.param_groups[group_index]["params"][index]
            is_large = self._full_sizes()[id(shard)] >= settings["min_8bit_size"]
            return settings | {"min_8bit_size": 0 if is_large else sys.maxsize}

        vars(optimizer)["get_config"] = by_full_size

    @staticmethod
    def can_step_shards(optimizer: Optimizer, masters: Mapping[str, nn.Parameter]) -> bool:
        return True

    def load_target(self, name: str, entry: str, shape: torch.Size) -> Tensor | None:
        if entry not in SCALES:
            return None
        target = self._as_rows(None, self.masters[name])
        if target.shape != shape:
            raise ValueError(
                f"the checkpoint has 8-bit optimizer states of another number of ranks ({name}: "
                f"{shape.numel()} scales instead of {target.numel()}), which are not converted: "
                "load with load_optimizer_states=False, or with the number of ranks that saved it"
            )
        return target

    def _full_sizes(self) -> dict[int, int]:
        return {id(self.shards[name]): master.numel() for name, master in self.masters.items()}

    def _converted(self, key: str, value: Any, convert: Any, old: Tensor, new: Tensor) -> Any:
        if key not in SCALES:
            return super()._converted(key, value, convert, old, new)
        if isinstance(new, DTensor):
            return self._as_rows(value, new)
        return local_part(value)[: -(-new.numel() // BLOCK)].clone()

    @staticmethod
    def _as_rows(scales: Tensor | None, master: Tensor) -> Tensor:
        """Return ``scales`` of this rank's shard of ``master`` as its row, sharded like it.

        Rows have the length of the longest. None: zeros.
        """
        if not isinstance(master, DTensor):
            return torch.zeros(-(-master.numel() // BLOCK)) if scales is None else scales
        ranks = prod(
            size
            for size, placement in zip(master.device_mesh.shape, master.placements, strict=True)
            if isinstance(placement, Shard)
        )
        rows = -(-master.shape[0] // ranks)
        row = master.to_local().new_zeros(
            -(-rows * master.shape[1:].numel() // BLOCK), dtype=torch.float32
        )
        if scales is not None:
            row[: scales.numel()].copy_(scales)
        return DTensor.from_local(row, master.device_mesh, master.placements, run_check=False)
