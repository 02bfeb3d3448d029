"""Weights & Biases, written by a script itself."""

from dsengine.deepspeed.monitor.monitor import Monitor


class WandbMonitor(Monitor):
    """Takes the block ``wandb`` of a config as an object."""


__all__ = ["WandbMonitor"]
