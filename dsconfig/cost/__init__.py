"""The estimator: bytes on device, host and NVMe, each with its cause and its lifetime."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsconfig.cost.answer import peak, price
    from dsconfig.cost.buckets import bucket_rule_bytes

# ``estimate`` is not here: dsconfig.cost.estimate is the module of the values.
_HOMES = {"peak": "answer", "price": "answer", "bucket_rule_bytes": "buckets"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"dsconfig.cost.{_HOMES[name]}"), name)


__all__ = ["bucket_rule_bytes", "peak", "price"]
