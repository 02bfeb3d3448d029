"""The training state that the engine passes to a checkpoint."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dsengine.parameters.names import named_persistent_buffers, named_shards
from dsengine.parameters.quantized import quantization_constants
from dsengine.torch_private.tensors import local_part


class Stateful(Protocol):
    """An object with saved state: scheduler, loss scale, counters, loader."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """The complete state of a run.

    ``module``: the model itself, not a DistributedDataParallel around it.
    ``optimizer``: the torch optimizer of the (sharded) parameters.
    ``masters``: by parameter name, its fp32 master weights if separate; saved in its place, and
    loading writes both.
    ``parts``: by name, the small states (``lr_scheduler``, ``loss_scale``, ``counters``,
    ``data``), equal on all ranks. ``load_lr_scheduler_states`` controls ``lr_scheduler``.
    ``description``: plain data for readers, such as stage and world size.
    ``load_target``: returns the tensor to load a parameter's optimizer state into, given its name
    and saved shape, or None for a new one; raises ValueError for one that does not fit.
    ``state_dtype``: returns the dtype of a new one, given its weight and that of the saved state.
    ``file_backed``: tensors are views of files, and may exceed the memory.
    """

    module: nn.Module
    optimizer: Optimizer | None = None
    masters: Mapping[str, Tensor] = field(default_factory=dict)
    parts: Mapping[str, Stateful] = field(default_factory=dict)
    description: Mapping[str, Any] = field(default_factory=dict)
    load_target: Callable[[str, str, torch.Size], Tensor | None] = lambda *_: None
    state_dtype: Callable[[Tensor, torch.dtype], torch.dtype] = lambda weight, saved: saved
    file_backed: bool = False

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the (sharded) parameters by name, each tied weight only once."""
        return dict(named_shards(self.module))

    def tied(self) -> dict[str, str]:
        """Return every alias of a tied weight, with the name under which it is saved."""
        first = {id(parameter): name for name, parameter in named_shards(self.module)}
        aliases = named_shards(self.module, remove_duplicate=False)
        return {name: first[id(p)] for name, p in aliases if first[id(p)] != name}

    def trained(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors by name: masters if separate, otherwise parameters."""
        return {name: self.masters.get(name, p) for name, p in self.parameters().items()}

    def weights(self, *, exclude_frozen: bool = False) -> dict[str, Tensor]:
        """Return parameters (or their masters) and buffers by name."""
        weights: dict[str, Tensor] = {
            name: self.masters.get(name, parameter)
            for name, parameter in self.parameters().items()
            if parameter.requires_grad or not exclude_frozen
        }
        weights |= self.buffers(exclude_frozen=exclude_frozen)
        return {name: tensor.detach() for name, tensor in weights.items()}

    def buffers(self, *, exclude_frozen: bool = False) -> dict[str, Tensor]:
        """Return by name persistent buffers, and the constants of quantized, frozen weights."""
        constants = () if exclude_frozen else quantization_constants(self.module)
        return {**dict(named_persistent_buffers(self.module)), **dict(constants)}

    @torch.no_grad()
    def refresh_parameters(self) -> None:
        """Copy the masters to their parameters."""
        for name, parameter in self.parameters().items():
            master = self.masters.get(name, parameter)
            if master is not parameter:
                local_part(parameter).copy_(local_part(master))
