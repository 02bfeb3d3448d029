"""Weights & Biases, for scripts that log by themselves."""

from dsengine.deepspeed.monitor.monitor import Monitor


class WandbMonitor(Monitor):
    """Takes the ``wandb`` block of a config."""


__all__ = ["WandbMonitor"]
