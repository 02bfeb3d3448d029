"""Dtypes of weights, gradients and communication; the loss scale."""

from dsengine.precision.loss_scale import LossScaleExhaustedError, LossScaler
from dsengine.precision.policy import DTYPES, Policy, loss_scaler, policy

__all__ = ["DTYPES", "LossScaleExhaustedError", "LossScaler", "Policy", "loss_scaler", "policy"]
