"""What every way of distributing a model offers to the engine."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Sharding(ABC):
    """A module distributed over ranks.

    ``module``: the user's model, its parameters as the stage leaves them between steps.
    ``masters``: by the names they had at first, the parameters that the optimizer updates,
    each shared one once. ``originals``: those names by the parameters of the undistributed
    module.
    """

    reduces_every_micro_step: bool = False
    """Gradients are reduced in each backward, so a window's sum is one of reduced parts."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.originals: dict[Tensor, str] = {
            parameter: name for name, parameter in module.named_parameters()
        }
        self.masters: dict[str, nn.Parameter] = {}

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with the hooks that distribution needs."""

    @abstractmethod
    def before_backward(self, loss: Tensor, reduce: bool) -> None:
        """Say whether the coming backward has to leave reduced gradients."""

    def after_backward(self) -> None:
        """Do what the reduced gradients need after each backward."""
        return

    @abstractmethod
    def after_update(self) -> None:
        """Bring the module up to date with the masters."""

    def divide(self, name: str, tensor: Tensor) -> Tensor:
        """Return what this rank keeps of a whole tensor shaped like parameter ``name``."""
        del name
        return tensor

    @property
    def norm_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold different parts of one gradient; None when each holds all."""
        return None

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Names and local parts of the reduced gradients."""
        for name, master in self.masters.items():
            if master.grad is not None:
                yield name, local_part(master.grad)

    def drop_gradients(self) -> None:
        """Forget reduced and unreduced gradients."""
        for master in self.masters.values():
            master.grad = None
        for parameter in self.module.parameters():
            parameter.grad = None


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, or the tensor itself."""
    local = getattr(tensor, "_local_tensor", tensor)
    return local if isinstance(local, torch.Tensor) else tensor
