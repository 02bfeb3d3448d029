"""Optimizers below the device: in host memory, on NVMe."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

import dsconfig
from dsengine.offload.host import HostBinding
from dsengine.offload.nvme import NvmeBinding
from dsengine.offload.settings import OffloadSettings
from dsengine.optimizers.binding import Binding


def bind(
    optimizer: Optimizer,
    masters: Mapping[str, nn.Parameter],
    effective: dsconfig.Effective,
    host_masters: Mapping[str, Tensor] | None = None,
) -> Binding:
    """Hold an optimizer to the tensors it steps, on the tier that the config names.

    ``host_masters``: fp32 parts that are on the host already; others are copied there.
    Raises ValueError for an optimizer that cannot be offloaded, OSError when NVMe space is short.
    """
    settings = OffloadSettings.of(effective)
    if settings is None:
        return Binding(optimizer, masters)
    kind = HostBinding if settings.nvme_path is None else NvmeBinding
    return kind(optimizer, masters, settings, host_masters or {})


__all__ = ["HostBinding", "NvmeBinding", "OffloadSettings", "bind"]
