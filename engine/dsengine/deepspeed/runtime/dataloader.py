"""Data loaders."""

from dsengine.loop.data import RepeatingLoader

__all__ = ["RepeatingLoader"]
