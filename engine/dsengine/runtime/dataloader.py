"""Loaders."""

from dsengine.data import RepeatingLoader

__all__ = ["RepeatingLoader"]
