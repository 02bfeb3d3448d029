"""The class with which scripts recognize an engine of a pipeline."""

from typing import Any

from dsengine.loop.engine import Engine


class PipelineEngineType(type):
    """Metaclass: instances are the engines that train a PipelineModule."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Engine) and instance._pipeline is not None


class PipelineEngine(metaclass=PipelineEngineType):
    """Engines of PipelineModules are instances of this class; ``initialize`` builds them."""
