"""The class of a fused Adam in 16-bit engines of stage 0."""

from typing import Any

from dsengine.deepspeed.ops.adam import FusedAdam
from dsengine.deepspeed.runtime.base_optimizer import StageClass


class HalfPrecisionClass(StageClass):
    """Metaclass of DeepSpeed's two classes for stage 0, in bf16 and fp16."""

    is_fused: bool

    def __instancecheck__(cls, instance: Any) -> bool:
        narrow = getattr(instance, "low_precision_dtype", None) is not None
        is_fused = isinstance(instance, FusedAdam)
        return super().__instancecheck__(instance) and narrow and is_fused is cls.is_fused


class FP16_Optimizer(metaclass=HalfPrecisionClass):
    """A FusedAdam of such an engine is an instance of this class."""

    stages, is_fused = (0,), True


__all__ = ["FP16_Optimizer"]
