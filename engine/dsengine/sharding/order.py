"""Whether all ranks reduce gradients in the same order.

[Note: order of reductions]
Ranks match collectives by their order, not by their content. A unit is reduced when backward
reaches it, so ranks that use different units (experts that no common unit contains, layers that
only some ranks skip) sum the gradients of different units: without an error if these have the same
size. So each rank keeps a number that depends on the order of its reductions. The step compares it
in the reduction of the gradient norm, at no additional cost, and refuses the update.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn

_FACTOR, _RANGE = 5, 4093
"""The largest prime below 2**12 and a primitive root of it: other orders of a few units never have
equal numbers, as they would modulo a power of two."""


class OrderError(RuntimeError):
    """Ranks have reduced different parameters together. The weights are unchanged."""

    def __init__(self, step: int) -> None:
        super().__init__(
            f"step {step}: the ranks have used different modules, so that gradients of different "
            "parameters were summed; the weights are unchanged. Mark the module that chooses "
            "between them: deepspeed.utils.set_z3_leaf_modules(model, [Class]), or "
            'zero_optimization.leaf_module: {"classes": ["Class"]}. Or use each module on every '
            "rank: add 0 * its output to the loss"
        )


class ReductionOrder:
    """A number for the order in which the gradients of ``shards`` have been reduced."""

    def __init__(self, shards: Iterable[nn.Parameter]) -> None:
        self.number = 0
        for index, shard in enumerate(shards, 1):
            self._register_hook(shard, index)

    def restart(self) -> None:
        """Forget the reductions of the last step."""
        self.number = 0

    def _register_hook(self, shard: nn.Parameter, index: int) -> None:
        """Register a hook, also on a frozen parameter, which may be trained later."""
        is_trained = shard.requires_grad
        hook = partial(self._count, index)
        shard.requires_grad_(True).register_post_accumulate_grad_hook(hook)
        shard.requires_grad_(is_trained)

    def _count(self, index: int, shard: Any) -> None:
        del shard
        self.number = (self.number * _FACTOR + index) % _RANGE
