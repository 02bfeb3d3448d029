"""Norm, clipping and checks of gradients."""

from dsengine.gradients.finite import NonFiniteGradientError, raise_non_finite
from dsengine.gradients.norm import clipping_factor, global_norm, scale_gradients

__all__ = [
    "NonFiniteGradientError",
    "clipping_factor",
    "global_norm",
    "raise_non_finite",
    "scale_gradients",
]
