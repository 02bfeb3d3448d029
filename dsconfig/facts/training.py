"""What a training script knows about its run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """What a training script knows: the names are those of Hugging Face's TrainingArguments.

    ``arguments`` keeps every argument given, also those without a field here.
    """

    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    sequence_length: int | None = None
    learning_rate: float | None = None
    adam_betas: tuple[float, float] | None = None
    adam_epsilon: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    warmup_steps: float | None = None
    total_steps: int | None = None
    precision: str | None = None
    """``fp32``, ``fp16`` or ``bf16``."""
    arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
