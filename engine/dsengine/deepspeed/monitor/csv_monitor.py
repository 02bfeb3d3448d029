"""CSV files, one per tag, for scripts that log by themselves."""

from dsengine.deepspeed.monitor.monitor import Monitor


class csvMonitor(Monitor):
    """Takes the ``csv_monitor`` block of a config."""


__all__ = ["csvMonitor"]
