"""Attention of a script over a sequence whose parts are on different ranks, at DeepSpeed's path."""

from dsengine.parallel.distributed_attention import DistributedAttention

__all__ = ["DistributedAttention"]
