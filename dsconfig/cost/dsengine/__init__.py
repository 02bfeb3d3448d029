"""Replay of dsengine's allocations, derived from how ``fully_shard`` works."""

from dsconfig.cost.dsengine.sharded import simulate

__all__ = ["simulate"]
