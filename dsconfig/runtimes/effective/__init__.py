"""A config with nothing left open, and how it is derived from what the user wrote."""

from typing import TYPE_CHECKING, Any

from dsconfig.runtimes.effective.settings import (
    ActivationCheckpointing,
    Batch,
    Checkpointing,
    Effective,
    Gradients,
    LossScale,
    Named,
    Numerics,
    Offload,
    Precision,
    Reporting,
    Tier,
    Zero,
)

if TYPE_CHECKING:
    from dsconfig.runtimes.effective.derive import effective


def __getattr__(name: str) -> Any:
    """Load ``effective`` on first use: it needs the schema, the values here do not."""
    if name != "effective":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dsconfig.runtimes.effective.derive import effective

    return effective


__all__ = [
    "ActivationCheckpointing",
    "Batch",
    "Checkpointing",
    "Effective",
    "Gradients",
    "LossScale",
    "Named",
    "Numerics",
    "Offload",
    "Precision",
    "Reporting",
    "Tier",
    "Zero",
    "effective",
]
