"""TensorBoard event files, for scripts that log by themselves."""

from dsengine.deepspeed.monitor.monitor import Monitor


class TensorBoardMonitor(Monitor):
    """Takes the ``tensorboard`` block of a config."""


__all__ = ["TensorBoardMonitor"]
