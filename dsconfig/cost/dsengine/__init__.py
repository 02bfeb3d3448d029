"""What our own engine allocates, replayed from the way ``fully_shard`` works."""

from dsconfig.cost.dsengine.simulate import simulate

__all__ = ["simulate"]
