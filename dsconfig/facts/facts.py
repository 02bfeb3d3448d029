"""Everything known about the world a config is for. Each fact knows where it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsconfig.facts.model import ModelTree


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One accelerator (or the CPU used as one).

    Bytes are exact; rates are dense TFLOPS; links are GB/s in one direction. None: unknown.
    """

    name: str
    kind: str = "cuda"
    """``cuda``, ``rocm``, ``hpu`` or ``cpu``."""
    memory_bytes: int | None = None
    bf16: bool = True
    fp16: bool = True
    tflops_16bit: float | None = None
    tflops_fp32: float | None = None
    memory_gb_per_second: float | None = None
    link_gb_per_second: float | None = None
    pcie_gb_per_second: float | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One node: main memory in bytes, CPU cores, NVMe directory and free bytes on it."""

    memory_bytes: int | None = None
    cores: int | None = None
    nvme_path: str | None = None
    nvme_bytes: int | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The world. ``origins`` maps a field name (``world_size``, ``device`` ...) to its source,
    ``training`` and ``launch`` to the files they were read from.

    ``data_parallel`` is ``world_size`` divided by tensor, sequence and pipeline degrees.
    """

    world_size: int | None = None
    nodes: int | None = None
    device: DeviceFacts | None = None
    host: HostFacts | None = None
    model: "ModelTree | None" = None
    training: TrainingFacts | None = None
    tensor_parallel: int = 1
    sequence_parallel: int = 1
    pipeline_parallel: int = 1
    client_optimizer: str | None = None
    """Class name of an optimizer the script passes itself."""
    client_scheduler: str | None = None
    launch: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """An accelerate config file as given (its ``deepspeed_config`` block is a plugin's)."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def data_parallel(self) -> int | None:
        if self.world_size is None:
            return None
        degree = self.tensor_parallel * self.sequence_parallel * self.pipeline_parallel
        return self.world_size // degree
