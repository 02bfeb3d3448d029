"""What a plan says about the optimizer's tier, in one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

import dsconfig
from dsengine.optimizers.precision import policy


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """``sub_group_size``: most elements updated at a time; ``ratio``: their share on the host.

    ``nvme_path`` is None for the host tier. ``block_bytes`` are those of one read or write on
    NVMe, of which ``in_flight`` run at a time; ``buffer_count`` counts tensors, as the config
    does. ``rounding``: the dtype to whose precision a window's gradients are summed.
    ``shards_on_host``: the shards of parameters rest below the device too.
    """

    sub_group_size: int = 1_000_000_000
    ratio: float = 1.0
    pin_memory: bool = True
    nvme_path: str | None = None
    buffer_count: int = 4
    block_bytes: int = 1_048_576
    in_flight: int = 8
    rounding: torch.dtype = torch.float32
    shards_on_host: bool = False

    @classmethod
    def of(cls, effective: dsconfig.Effective) -> "OffloadSettings | None":
        """Return the settings of a plan's config; None when the optimizer stays on the device."""
        zero = effective.zero
        offload = zero.offload_optimizer
        if offload is None or zero.stage == 0:
            return None
        aio: Mapping[str, Any] = effective.config.get("aio") or {}
        on_nvme = str(offload.tier) == "nvme"
        if on_nvme and not offload.nvme_path:
            raise ValueError("zero_optimization.offload_optimizer.device is nvme: give nvme_path")
        return cls(
            sub_group_size=zero.sub_group_size,
            ratio=offload.ratio,
            pin_memory=offload.pin_memory,
            nvme_path=offload.nvme_path if on_nvme else None,
            buffer_count=offload.buffer_count,
            block_bytes=int(aio.get("block_size", 1_048_576)),
            in_flight=max(1, int(aio.get("intra_op_parallelism", 1)))
            * max(1, int(aio.get("queue_depth", 8))),
            rounding=policy(effective).accumulation,
            shards_on_host=zero.stage == 3 and zero.offload_param is not None,
        )
