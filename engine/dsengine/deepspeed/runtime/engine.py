"""The engine's class with DeepSpeed's name."""

from dsengine.loop.engine import Engine as DeepSpeedEngine

__all__ = ["DeepSpeedEngine"]
