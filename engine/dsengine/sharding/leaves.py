"""Units with a module in them of which each rank may use other parts.

[Note: what ranks have to do alike]
A unit's gradients are reduced in one collective, of those parameters that have one. Where ranks
have used different experts the pieces would not belong together; torch can put a zero in the
place of each gradient that is not there. A gather is alike when the leaf lies in one unit.
"""

from collections.abc import Sequence

from torch import nn
from torch.distributed.fsdp import FSDPModule

from dsengine.sharding.internals import sharded_entries
from dsengine.zero.leaves import leaves


def reduce_unused_of_leaves(
    root: nn.Module, units: Sequence[FSDPModule], whole: Sequence[FSDPModule]
) -> None:
    """Let the units of leaves reduce every parameter; ``whole`` are never gathered in between.

    Raises ValueError for a leaf that is gathered in several parts, or when torch has no zeros.
    """
    for name, leaf in leaves(root):
        below = {id(module) for module in leaf.modules()}
        own = [
            unit
            for unit in units
            if any(id(entry._module_info.module) in below for entry in sharded_entries(unit))
        ]
        if sum(unit not in whole for unit in own) > 1:
            raise ValueError(
                f"leaf module {name!r} is not gathered as one, for it lies outside of the repeated "
                "blocks: use zero_optimization.stage 2, where parameters stay whole"
            )
        for unit in own:
            _reduce_unused(unit)


def _reduce_unused(unit: FSDPModule) -> None:
    switch = getattr(unit, "set_reduce_scatter_unused_params", None)
    if switch is None:
        raise ValueError("set_z3_leaf_modules needs torch 2.13 at stages 1 to 3: or use stage 0")
    switch(True, recurse=False)
