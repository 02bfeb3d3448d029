"""Comet, for scripts that log by themselves."""

from dsengine.deepspeed.monitor.monitor import Monitor


class CometMonitor(Monitor):
    """Takes the ``comet`` block of a config."""


__all__ = ["CometMonitor"]
