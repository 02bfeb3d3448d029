"""TensorBoard event files, written by a script itself."""

from dsengine.deepspeed.monitor.monitor import Monitor


class TensorBoardMonitor(Monitor):
    """Takes the block ``tensorboard`` of a config as an object."""


__all__ = ["TensorBoardMonitor"]
