"""verl's engine interface, as far as weights go. ``weight_transfer.json`` has the signatures."""

from typing import Any


class BaseEngine:
    def initialize(self) -> Any:
        raise NotImplementedError

    @property
    def is_param_offload_enabled(self) -> bool:
        raise NotImplementedError

    @property
    def is_optimizer_offload_enabled(self) -> bool:
        raise NotImplementedError

    def get_per_tensor_param(self) -> Any:
        raise NotImplementedError


class EngineRegistry:
    engines: dict[tuple[str, str, str], type[BaseEngine]] = {}  # noqa: RUF012

    @classmethod
    def register(
        cls, model_type: str, backend: list[str] | str, device: list[str] | str = "cuda"
    ) -> Any:
        def decorate(engine: type[BaseEngine]) -> type[BaseEngine]:
            assert issubclass(engine, BaseEngine) and isinstance(backend, str)
            for each in [device] if isinstance(device, str) else device:
                cls.engines[(model_type, backend, each)] = engine
            return engine

        return decorate
