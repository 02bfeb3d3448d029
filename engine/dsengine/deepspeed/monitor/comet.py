"""Comet, written by a script itself."""

from dsengine.deepspeed.monitor.monitor import Monitor


class CometMonitor(Monitor):
    """Takes the block ``comet`` of a config as an object."""


__all__ = ["CometMonitor"]
