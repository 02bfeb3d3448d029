"""What every way of distributing a model offers to the engine."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsengine.tiers import OffloadedGradients
from dsengine.torch_private import local_part, persistent_buffers


class LoadResult(NamedTuple):
    """As ``nn.Module.load_state_dict`` returns it."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Sharding(ABC):
    """A module distributed over ranks.

    ``module``: the user's model, its parameters as the stage leaves them between steps.
    ``masters``: by the names they had at first, the parameters that the optimizer updates,
    each shared one once. ``originals``: those names by the parameters of the undistributed
    module. ``aliases``: every name a parameter has, with the name of its master.
    """

    has_forward_collectives: bool = True
    """Ranks wait for each other in forward, or in getting over one that has failed."""
    reduces_every_micro_step: bool = False
    """Gradients are reduced in each backward, so a window's sum is one of reduced parts."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.originals: dict[Tensor, str] = {
            parameter: name for name, parameter in module.named_parameters()
        }
        self.aliases: dict[str, str] = {
            name: self.originals[parameter]
            for name, parameter in module.named_parameters(remove_duplicate=False)
        }
        self.masters: dict[str, nn.Parameter] = {}
        self.host_masters: dict[str, Tensor] = {}
        """This rank's fp32 parts of an offloaded optimizer, where the shards are of 16 bits."""
        self.offloaded_gradients: OffloadedGradients | None = None
        """Reduced gradients that have left for an offloaded optimizer."""
        self.has_model = True
        """Until another ``initialize`` takes the model over."""

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
    def after_update(self, *, frozen: bool = True) -> None:
        """Bring the module up to date with the masters; ``frozen``: with all, not only with those
        that an optimizer updates.
        """

    @contextmanager
    def reduced_at_end(self) -> Iterator[None]:
        """Reduce on leaving what the backwards inside have left unreduced."""
        raise RuntimeError("coalesce_grad_reduction() needs ZeRO stage 1 or above: use no_sync()")
        yield

    def divide(self, name: str, tensor: Tensor) -> Tensor:
        """Return what this rank keeps of a whole tensor shaped like parameter ``name``."""
        del name
        return tensor

    def before_move(self) -> None:
        """Let the module have what can be moved or cast."""
        return

    def restore(self) -> None:
        """Bring the module back to its state at rest, after it was moved or cast."""
        return

    def release(self) -> None:
        """Free what is gathered and not in use."""
        return

    def detach(self) -> None:
        """Leave the model to another engine: this one trains it no more."""
        self.drop_gradients()
        self.has_model = False

    def abort_pass(self, *, in_backward: bool) -> None:
        """Be ready for a forward after an error has ended a pass, on all ranks alike.

        ``in_backward``: and be rid of what it has left of gradients, which are not reduced yet.
        """
        return

    def prepare_for_compile(self) -> None:
        """Take away what torch.compile cannot trace."""
        return

    @property
    def norm_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold different parts of one gradient; None when each holds all."""
        return None

    def counted_in_norm(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return which of the reduced gradients this rank adds to the norm over ``norm_group``."""
        return gradients

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Names and local parts of the reduced gradients."""
        for name, master in self.masters.items():
            if master.grad is not None:
                yield name, local_part(master.grad)
            elif self.offloaded_gradients is not None and name in self.offloaded_gradients:
                yield name, self.offloaded_gradients[name]

    def names_without_gradient(self) -> list[str]:
        """Names of trainable parameters that no gradient has reached."""
        reached = {name for name, _ in self.gradients()}
        return [n for n, m in self.masters.items() if m.requires_grad and n not in reached]

    def unreduced(self) -> Mapping[str, Tensor] | None:
        """This rank's own sums of gradients by the names of masters; None where none are held."""
        return None

    def unreduced_sums(self) -> Iterable[Tensor]:
        """What is held of a window's gradients beside those of the parameters."""
        return ()

    def drop_reduced(self) -> None:
        """Forget the gradients the optimizer has used."""
        for master in self.masters.values():
            master.grad = None
        if self.offloaded_gradients is not None:
            self.offloaded_gradients.clear()

    def drop_gradients(self) -> None:
        """Forget reduced and unreduced gradients, unless they are those of another engine."""
        if not self.has_model:
            return
        self.drop_reduced()
        for parameter in self.module.parameters():
            parameter.grad = None

    @torch.no_grad()
    def load_full(self, state: Mapping[str, Tensor], *, strict: bool) -> LoadResult:
        """Load whole tensors by name into masters, parameters and buffers.

        Of tied weights one name is enough. Raises RuntimeError for tensors of other shapes,
        and, when ``strict``, for names that are missing or unknown.
        """
        buffers = self._persistent_buffers()
        by_alias = {name: self.masters[master] for name, master in self.aliases.items()}
        given = {self.aliases[name] for name in state if name in self.aliases}
        missing = [name for name, master in self.aliases.items() if master not in given]
        missing += [name for name in buffers if name not in state]
        unknown = [name for name in state if name not in self.aliases and name not in buffers]
        wrong = [
            f"{name}: {tuple(state[name].shape)} for {tuple(target.shape)}"
            for name, target in {**by_alias, **buffers}.items()
            if name in state and state[name].shape != target.shape
        ]
        if wrong or (strict and (missing or unknown)):
            raise RuntimeError(
                f"these weights do not fit the model: missing {missing}, unknown {unknown}, "
                f"of another shape {wrong}"
            )
        for name, tensor in state.items():
            if name in self.aliases:
                master = self.masters[self.aliases[name]]
                part = self.divide(self.aliases[name], tensor.to(master.device, master.dtype))
                local_part(master).copy_(local_part(part))
            elif name in buffers:
                buffers[name].copy_(tensor)
        self.after_update()
        return LoadResult(missing, unknown)

    def _persistent_buffers(self) -> dict[str, Tensor]:
        return {
            f"{prefix}.{name}" if prefix else name: buffer
            for prefix, module in self.module.named_modules()
            for name, buffer in persistent_buffers(module)
        }
