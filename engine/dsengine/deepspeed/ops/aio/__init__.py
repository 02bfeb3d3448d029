"""What programs import from ``deepspeed.ops.aio``, to ask whether states can lie on NVMe."""

from dsengine.deepspeed.ops.op_builder import AsyncIOBuilder

__all__ = ["AsyncIOBuilder"]
