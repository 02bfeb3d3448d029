"""Building optimizers, and moving them onto the shards."""

from dsengine.optimizers.build import as_groups, build_optimizer
from dsengine.optimizers.rebind import masters_of_groups, rebind

__all__ = ["as_groups", "build_optimizer", "masters_of_groups", "rebind"]
