"""Full parameters of split layers."""

from collections.abc import Iterable

from torch import Tensor, nn

from dsengine.sharding.zero.gathered import GatheredParameters


class GatherReplacedLayerParams(GatheredParameters):
    """Makes the parameters of split layers full on every rank inside the context.

    Changes by rank 0 are kept. Collective. ``module`` is not used.
    """

    def __init__(
        self, params: Iterable[Tensor] | Tensor, module: nn.Module, enabled: bool = True
    ) -> None:
        del module
        super().__init__(params, modifier_rank=0, enabled=enabled)
