"""What an engine of stage 0 steps beside weights of 16 bits, where it is no fused Adam."""

from dsengine.deepspeed.runtime.fp16.fused_optimizer import BesideHalf


class FP16_UnfusedOptimizer(metaclass=BesideHalf):
    """Any other optimizer that such an engine steps is an instance of this."""

    stages, is_fused = (0,), False


__all__ = ["FP16_UnfusedOptimizer"]
