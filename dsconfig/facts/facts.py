"""Everything known about the world a config is for. Each fact knows where it came from.

Its parts have modules of their own: a config judged without facts needs this class alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig import mesh
    from dsconfig.facts import training

if TYPE_CHECKING:
    from dsconfig.facts.machine import DeviceFacts, HostFacts
    from dsconfig.facts.model import Architecture, ModelOutline, ModelTree
    from dsconfig.facts.training import TrainingFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The world. ``origins`` maps a field name (``world_size``, ``device`` ...) to its source,
    ``training`` and ``launch`` to the files they were read from.

    ``data_parallel`` is ``world_size`` divided by tensor, sequence and pipeline degrees.
    """

    world_size: int | None = None
    nodes: int | None = None
    device: "DeviceFacts | None" = None
    host: "HostFacts | None" = None
    model: "ModelTree | None" = None
    outline: "ModelOutline | None" = None
    """A model that was named and whose sizes are not known; ``model`` is None then."""
    training: "TrainingFacts | None" = None
    tensor_parallel: int = 1
    sequence_parallel: int = 1
    pipeline_parallel: int = 1
    node_link_gb_per_second: float | None = None
    """Between nodes, per device and in one direction; None: unknown."""
    base_weights: str | None = None
    """``4bit`` or ``8bit``: storage of the frozen linear layers (bitsandbytes)."""
    client_optimizer: str | None = None
    """Class name of an optimizer the script passes itself."""
    client_scheduler: str | None = None
    releases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of transformers and accelerate by name, where it is known which of them run the file."""
    launch: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """An accelerate config file as given (its ``deepspeed_config`` block is a plugin's)."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def named_model(self) -> "ModelTree | ModelOutline | None":
        """The model that was named, whatever is known of it."""
        return self.model or self.outline

    @property
    def width(self) -> int | None:
        """The model's hidden_size, where it is known."""
        return self.named_model.hidden_size if self.named_model else None

    @property
    def why_no_model(self) -> str:
        """Why nothing can be said that needs the model's sizes, and what supplies them."""
        asked = "the model is unknown: give --model or --params"
        return self.outline.why if self.outline is not None else asked

    @property
    def architecture(self) -> "Architecture | None":
        """The model's sizes, where they are known."""
        return self.model.architecture if self.model else None

    @property
    def arguments(self) -> Mapping[str, Any]:
        """TrainingArguments of the run, and what flags say in their words."""
        return self.training.arguments if self.training else {}

    @property
    def sequence_length(self) -> int | None:
        return self.training.sequence_length if self.training else None

    @property
    def device_bytes(self) -> int | None:
        """Memory of the device, where it is known."""
        return self.device.memory_bytes if self.device else None

    @property
    def on_cpu(self) -> bool:
        """Whether the processor is the device."""
        return self.device is not None and self.device.kind == "cpu"

    def with_arguments(self, arguments: Mapping[str, Any]) -> "Facts":
        """The same run with these arguments, and those that it has beside them."""
        held = self.training or training.TrainingFacts()
        return replace(self, training=replace(held, arguments={**held.arguments, **arguments}))

    @property
    def data_parallel(self) -> int | None:
        if self.world_size is None:
            return None
        return mesh.data_parallel_ranks(
            self.world_size,
            tensor=self.tensor_parallel,
            sequence=self.sequence_parallel,
            pipeline=self.pipeline_parallel,
        )
