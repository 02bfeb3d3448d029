"""Names of ``deepspeed.ops.aio`` with which programs check for NVMe offload."""

from dsengine.deepspeed.ops.op_builder import AsyncIOBuilder

__all__ = ["AsyncIOBuilder"]
