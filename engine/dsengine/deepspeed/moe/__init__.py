"""Queries about expert parallelism, which is not supported."""

from dsengine.deepspeed.moe import utils

__all__ = ["utils"]
