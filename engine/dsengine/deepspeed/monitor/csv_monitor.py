"""CSV files, one a tag, written by a script itself."""

from dsengine.deepspeed.monitor.monitor import Monitor


class csvMonitor(Monitor):
    """Takes the block ``csv_monitor`` of a config as an object."""


__all__ = ["csvMonitor"]
