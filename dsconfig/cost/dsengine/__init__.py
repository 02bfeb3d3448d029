"""What our own engine allocates, replayed from the way ``fully_shard`` works."""

from dsconfig.cost.dsengine.sharded import simulate

__all__ = ["simulate"]
