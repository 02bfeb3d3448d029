"""What our own engine allocates, replayed from the way ``fully_shard`` works."""

from dsconfig.memory.dsengine.simulate import simulate

__all__ = ["simulate"]
