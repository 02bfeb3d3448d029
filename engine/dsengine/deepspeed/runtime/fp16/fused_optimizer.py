"""What an engine of stage 0 steps beside weights of 16 bits, where it is a fused Adam."""

from typing import Any

from dsengine.deepspeed.ops.adam import FusedAdam
from dsengine.deepspeed.runtime.base_optimizer import OfStages


class BesideHalf(OfStages):
    """The type of DeepSpeed's two classes for stage 0, in bf16 as in fp16."""

    is_fused: bool

    def __instancecheck__(cls, instance: Any) -> bool:
        narrow = getattr(instance, "low_precision_dtype", None) is not None
        is_fused = isinstance(instance, FusedAdam)
        return super().__instancecheck__(instance) and narrow and is_fused is cls.is_fused


class FP16_Optimizer(metaclass=BesideHalf):
    """A FusedAdam that such an engine steps is an instance of this."""

    stages, is_fused = (0,), True


__all__ = ["FP16_Optimizer"]
