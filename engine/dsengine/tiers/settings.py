"""Settings of the optimizer's tier, from a plan."""

from dataclasses import dataclass

import torch

import dsconfig
from dsengine.optimizers.precision import policy


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """``sub_group_size``: maximum elements per tile; ``ratio``: share of elements on the host.

    ``nvme_path`` is None for the host tier. ``block_bytes``: size of one read or write on NVMe, of
    which ``in_flight`` run at a time. ``buffer_count`` counts tensors, as in the config.
    ``master``: the dtype of weights and gradient sums in the tier. ``states``: of the optimizer's
    states there. ``rounding``: the dtype to whose precision gradients are accumulated.
    ``shards_on_host``: parameter shards are offloaded too.
    """

    sub_group_size: int
    ratio: float
    pin_memory: bool
    nvme_path: str | None
    buffer_count: int
    block_bytes: int
    in_flight: int
    master: torch.dtype
    states: torch.dtype
    rounding: torch.dtype
    shards_on_host: bool

    @classmethod
    def of(cls, effective: dsconfig.Effective) -> "OffloadSettings | None":
        """Return the settings of a plan's config; None when the optimizer stays on the device."""
        zero = effective.zero
        offload = zero.offload_optimizer
        if offload is None or zero.stage == 0:
            return None
        access, precision = effective.file_access, policy(effective)
        sums = (precision.accumulation, precision.master)
        on_nvme = str(offload.tier) == "nvme"
        if on_nvme and not offload.nvme_path:
            raise ValueError("zero_optimization.offload_optimizer.device is nvme: set nvme_path")
        return cls(
            sub_group_size=zero.sub_group_size,
            ratio=offload.ratio,
            pin_memory=offload.pin_memory,
            nvme_path=offload.nvme_path if on_nvme else None,
            buffer_count=offload.buffer_count,
            block_bytes=access.block_size,
            in_flight=max(1, access.intra_op_parallelism) * max(1, access.queue_depth),
            master=precision.master,
            states=precision.states,
            rounding=min(sums, key=lambda dtype: dtype.itemsize),
            shards_on_host=zero.stage == 3 and zero.offload_param is not None,
        )
