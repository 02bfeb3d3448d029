"""Norm, clipping and checks of gradients."""

from dsengine.gradients.finite import NonFiniteGradientError, raise_non_finite
from dsengine.gradients.norm import clipping_factor, global_norm, scale_gradients
from dsengine.gradients.reduction import Averaging, ScaledReduceScatter, all_reduce_hook

__all__ = [
    "Averaging",
    "NonFiniteGradientError",
    "ScaledReduceScatter",
    "all_reduce_hook",
    "clipping_factor",
    "global_norm",
    "raise_non_finite",
    "scale_gradients",
]
