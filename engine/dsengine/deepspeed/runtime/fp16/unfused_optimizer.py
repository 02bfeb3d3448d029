"""The class of other optimizers than FusedAdam in 16-bit engines of stage 0."""

from dsengine.deepspeed.runtime.fp16.fused_optimizer import HalfPrecisionClass


class FP16_UnfusedOptimizer(metaclass=HalfPrecisionClass):
    """Other optimizers of such an engine are instances of this class."""

    stages, is_fused = (0,), False


__all__ = ["FP16_UnfusedOptimizer"]
