"""Offloaded optimizers: in host memory or on NVMe."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Adafactor, Optimizer

import dsconfig
from dsconfig.features.table import FEATURES
from dsengine.optimizers.adafactor import AdafactorBinding
from dsengine.optimizers.binding import Binding, NoOptimizerBinding, check_supported, is_sharded
from dsengine.optimizers.blockwise import BlockwiseBinding, is_blockwise
from dsengine.parameters.shards import is_of_experts, is_split
from dsengine.tiers.binding import OffloadedBinding
from dsengine.tiers.offloaded_gradients import OffloadedGradients
from dsengine.tiers.settings import OffloadSettings


def bind(
    optimizer: Optimizer | None,
    masters: Mapping[str, nn.Parameter],
    effective: dsconfig.Effective,
    host_masters: dict[str, Tensor] | None = None,
) -> Binding:
    """Bind an optimizer to the tensors it steps, on the tier that the config selects.

    ``host_masters``: fp32 shards already on the host; used ones are removed from it. Others are
    copied there. Raises ValueError for an optimizer that cannot be offloaded, OSError if NVMe space
    is insufficient.
    """
    if optimizer is None:
        return NoOptimizerBinding(masters)
    parts = [each for each in masters.values() if is_split(each) or is_of_experts(each)]
    if type(optimizer) is Adafactor and parts:
        raise ValueError(FEATURES["adafactor_of_parts"].text)
    settings = OffloadSettings.of(effective)
    if settings is None:
        kind = Binding
        if is_sharded(masters):
            kind = AdafactorBinding if type(optimizer) is Adafactor else kind
            kind = BlockwiseBinding if is_blockwise(optimizer) else kind
        return kind(optimizer, masters)
    check_supported(optimizer, sharded=True)
    return OffloadedBinding(
        optimizer, masters, settings, {} if host_masters is None else host_masters
    )


__all__ = ["OffloadSettings", "OffloadedBinding", "OffloadedGradients", "bind"]
