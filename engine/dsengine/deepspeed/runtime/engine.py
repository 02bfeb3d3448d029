"""The engine's class, under the name by which scripts ask for it."""

from dsengine.loop.engine import Engine as DeepSpeedEngine

__all__ = ["DeepSpeedEngine"]
