"""Everything known about the run a config is for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dsconfig.facts.naming import named
from dsconfig.lazy_imports import lazy_imports
from dsconfig.mesh import UNDIVIDED, Degrees
from dsconfig.report.sizes import counted, size

with lazy_imports():
    from dsconfig.facts import training

if TYPE_CHECKING:
    from dsconfig.facts.machine import DeviceFacts, HostFacts
    from dsconfig.facts.model import Architecture, ModelOutline, ModelTree
    from dsconfig.facts.training import TrainingFacts


@dataclass(frozen=True, slots=True)
class Companions:
    """What runs beside the model that is trained, and how many sequences a sample has; None if
    nobody states it."""

    copies: int | None = None
    sequences: int | None = None
    share: float | None = None

    @property
    def frozen_copies(self) -> int:
        return self.copies or 0

    @property
    def sequences_per_sample(self) -> int:
        return self.sequences or 1

    @property
    def inference_share(self) -> float:
        return self.share or 0.0


ALONE = Companions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about the run.

    ``origins`` maps a field name (``world_size``, ``device`` ...) to its source, ``training`` and
    ``launch`` to the files they were read from.
    """

    world_size: int | None = None
    nodes: int | None = None
    device: "DeviceFacts | None" = None
    host: "HostFacts | None" = None
    model: "ModelTree | None" = None
    outline: "ModelOutline | None" = None
    """A model that was specified but whose sizes are unknown; ``model`` is None then."""
    base_weights: str | None = None
    """``4bit`` or ``8bit``: storage of the frozen linear layers (bitsandbytes)."""
    training: "TrainingFacts | None" = None
    degrees: Degrees = UNDIVIDED
    node_link_gb_per_second: float | None = None
    """Bandwidth between nodes, per device and direction; None: unknown."""
    companions: "Companions" = ALONE
    """What runs beside the model."""
    client_optimizer: str | None = None
    """Class name of an optimizer that the script passes itself."""
    client_scheduler: str | None = None
    releases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Versions of transformers, accelerate, TRL, torch and CUDA by name, if known."""
    launch: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """The settings of an accelerate config file, including its ``deepspeed_config`` block."""
    launch_options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Options of ``accelerate launch``, which take precedence over the settings."""
    launch_variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables of accelerate that a script sets, which settings and options replace."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    passed_on_by: str = ""
    """The program that passes the TrainingArguments on, by its dialect; empty for a script."""

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}={value}" for name, value in self._known() if value)
        return f"<Facts: {listed or 'none'}>"

    def _known(self) -> Iterator[tuple[str, Any]]:
        """Yield each fact under the name of its argument of ``gather``; unknown ones are empty."""
        yield "gpus", self.world_size
        yield "nodes", self.nodes
        yield "device", self.device and self.device.name
        yield "model", self.named_model and self.named_model.name
        if self.model is not None and self.model.trainable < self.model.parameters:
            yield "trainable", f"{self.model.trainable:.3g}"
        yield "base_weights", self.base_weights
        known = self.training
        yield from ((name, getattr(known, key, None)) for key, name in training.GATHERED_AS.items())
        yield (
            "training_args",
            known and known.arguments and counted(len(known.arguments), "argument"),
        )
        yield "accelerate_config", self.launch and counted(len(self.launch), "setting")
        yield "host_memory", self.host and self.host.memory_bytes and size(self.host.memory_bytes)
        yield "nvme", self.host and self.host.nvme_path
        beside = self.companions
        yield "frozen_copies", beside.copies
        yield "sequences_per_sample", beside.sequences
        yield "inference_share", beside.share
        yield "client_optimizer", self.client_optimizer
        yield "client_scheduler", self.client_scheduler
        for name in ("tensor", "sequence", "pipeline", "expert"):
            degree = getattr(self.degrees, name)
            yield f"{name}_parallel", degree if degree > 1 else None
        yield "releases", ", ".join(f"{name}=={version}" for name, version in self.releases.items())

    @property
    def named_model(self) -> "ModelTree | ModelOutline | None":
        """The specified model, even if its sizes are unknown."""
        return self.model or self.outline

    @property
    def width(self) -> int | None:
        """The model's hidden_size, if known."""
        return self.named_model.hidden_size if self.named_model else None

    @property
    def why_no_model(self) -> str:
        """Why the model's sizes are unknown, and how to specify them."""
        default = f"the model is unknown: specify {named('model')} or {named('params')}"
        return self.outline.why if self.outline is not None else default

    @property
    def architecture(self) -> "Architecture | None":
        """The model's sizes, if known."""
        return self.model.architecture if self.model else None

    @property
    def arguments(self) -> Mapping[str, Any]:
        """TrainingArguments of the run."""
        return self.training.arguments if self.training else {}

    @property
    def execution(self) -> Mapping[str, Any]:
        """TrainingArguments with kernels and recomputation that are stated apart from them."""
        return {**self.arguments, **(self.training.execution if self.training else {})}

    @property
    def sequence_length(self) -> int | None:
        return self.training.sequence_length if self.training else None

    @property
    def device_bytes(self) -> int | None:
        """Memory of the device, if known."""
        return self.device.memory_bytes if self.device else None

    @property
    def on_cpu(self) -> bool:
        """Whether the device is the CPU."""
        return self.device is not None and self.device.kind == "cpu"

    def with_execution(self, arguments: Mapping[str, Any]) -> "Facts":
        """Return these facts with other kernels or recomputation, by TrainingArgument."""
        known = self.training or training.TrainingFacts()
        return replace(self, training=replace(known, execution={**known.execution, **arguments}))

    @property
    def gradient_ranks(self) -> int | None:
        """Ranks that average their gradients: all with the same part of the model."""
        return None if self.world_size is None else self.world_size // self.degrees.per_model

    @property
    def data_parallel(self) -> int | None:
        return None if self.world_size is None else self.degrees.samples(self.world_size)
