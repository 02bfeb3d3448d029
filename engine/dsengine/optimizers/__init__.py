"""Building optimizers, and rebinding them to shards."""

from dsengine.optimizers.binding import Binding
from dsengine.optimizers.build import as_groups, build_optimizer, is_muon, masters_of_groups, rebind
from dsengine.optimizers.muon import split_for_muon

__all__ = [
    "Binding",
    "as_groups",
    "build_optimizer",
    "is_muon",
    "masters_of_groups",
    "rebind",
    "split_for_muon",
]
