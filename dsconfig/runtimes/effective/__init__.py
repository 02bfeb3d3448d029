"""A config with nothing left open, and how it is derived from what the user wrote."""

from dsconfig.runtimes.effective.derive import effective
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
