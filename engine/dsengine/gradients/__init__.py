"""Norm, clipping and checks of gradients."""

from dsengine.gradients.finite import NonFiniteGradientError, describe_non_finite
from dsengine.gradients.norm import clipping_factor, global_norm, scale_gradients
from dsengine.gradients.reduction import Averaging, ScaledReduceScatter, all_reduce_hook

__all__ = [
    "Averaging",
    "NonFiniteGradientError",
    "ScaledReduceScatter",
    "all_reduce_hook",
    "clipping_factor",
    "describe_non_finite",
    "global_norm",
    "scale_gradients",
]
