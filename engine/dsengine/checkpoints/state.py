"""What a checkpoint holds: the one thing the engine hands over."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dsengine.parameters.names import named_persistent_buffers, named_shards
from dsengine.torch_private import local_part


class Stateful(Protocol):
    """Anything that can be saved and put back: scheduler, loss scale, counters, loader."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """Everything a run needs to go on as if it had never stopped.

    ``module``: the model itself, not a DistributedDataParallel around it.
    ``optimizer``: the torch optimizer whose groups hold the (sharded) parameters.
    ``masters``: by parameter name, the fp32 tensor that training updates where it is not the
    parameter itself; it is saved in its place, and loading writes both.
    ``parts``: by name, the small states (``lr_scheduler``, ``loss_scale``, ``counters``,
    ``data``), alike on all ranks. ``lr_scheduler`` is the one that
    ``load_lr_scheduler_states`` switches.
    ``description``: plain data kept for readers, e.g. stage and world size.
    ``room``: from a name and a state of the optimizer to the tensor that this is to be loaded
    into, None where any memory will do. ``in_files``: tensors are views of files, and more than
    memory may hold.
    """

    module: nn.Module
    optimizer: Optimizer | None = None
    masters: Mapping[str, Tensor] = field(default_factory=dict)
    parts: Mapping[str, Stateful] = field(default_factory=dict)
    description: Mapping[str, Any] = field(default_factory=dict)
    room: Callable[[str, str], Tensor | None] = lambda name, entry: None
    in_files: bool = False

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the (sharded) parameters by name, each tied weight once."""
        return dict(named_shards(self.module))

    def tied(self) -> dict[str, str]:
        """Return every further name of a tied weight, with the first, by which it is saved."""
        first = {id(parameter): name for name, parameter in named_shards(self.module)}
        every = named_shards(self.module, remove_duplicate=False)
        return {name: first[id(p)] for name, p in every if first[id(p)] != name}

    def trained(self) -> dict[str, Tensor]:
        """Return by name what the optimizer holds: masters where they exist, else parameters."""
        return {name: self.masters.get(name, p) for name, p in self.parameters().items()}

    def weights(self, *, exclude_frozen: bool = False) -> dict[str, Tensor]:
        """Return parameters (their masters where they exist) and buffers by name."""
        weights: dict[str, Tensor] = {
            name: self.masters.get(name, parameter)
            for name, parameter in self.parameters().items()
            if parameter.requires_grad or not exclude_frozen
        }
        weights.update(named_persistent_buffers(self.module))
        return {name: tensor.detach() for name, tensor in weights.items()}

    @torch.no_grad()
    def refresh_parameters(self) -> None:
        """Copy the masters into the parameters they stand for."""
        for name, parameter in self.parameters().items():
            master = self.masters.get(name, parameter)
            if master is not parameter:
                local_part(parameter).copy_(local_part(master))
