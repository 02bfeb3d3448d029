"""The interface between the engine and the mechanisms that distribute a model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsengine.tiers import OffloadedGradients
from dsengine.torch_private.modules import persistent_buffers
from dsengine.torch_private.tensors import local_part


class LoadResult(NamedTuple):
    """The return type of ``nn.Module.load_state_dict``."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def original_names(module: nn.Module) -> dict[Tensor, str]:
    """Return the name of each parameter of a module that is not distributed yet."""
    return {parameter: name for name, parameter in module.named_parameters()}


class Sharding(ABC):
    """A module distributed over ranks.

    ``module``: the user's model; its parameters are as the stage keeps them between steps.
    ``masters``: the parameters that the optimizer updates, by original name, each shared one once.
    ``aliases``: master name by each name of a parameter.
    """

    has_forward_collectives: bool = True
    """Whether forward, or recovery from a failed one, has collectives."""
    reduces_every_micro_step: bool = False
    """Whether each backward reduces gradients, so that a window sums reduced shards."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        originals = original_names(module)
        self.aliases: dict[str, str] = {
            name: originals[parameter]
            for name, parameter in module.named_parameters(remove_duplicate=False)
        }
        self.masters: dict[str, nn.Parameter] = {}
        self.host_masters: dict[str, Tensor] = {}
        """This rank's fp32 shards for an offloaded optimizer if the device shards are 16-bit."""
        self.offloaded_gradients: OffloadedGradients | None = None
        """Reduced gradients offloaded to the optimizer's tier."""
        self.has_model = True
        """False once another ``initialize`` has taken the model over."""

    def store_gradients(self, offloaded: OffloadedGradients | None) -> None:
        """Use the storage for reduced gradients of the optimizer's tier; it needs the masters."""
        self.offloaded_gradients = offloaded

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""

    @abstractmethod
    def before_backward(self, loss: Tensor, reduce: bool) -> None:
        """Prepare a backward; ``reduce``: whether it must reduce gradients."""

    def after_backward(self) -> None:
        """Finish a backward's reductions."""
        return

    @abstractmethod
    def after_update(self, *, frozen: bool = True) -> None:
        """Copy the masters' values into the module.

        ``frozen``: also those that no optimizer updates.
        """

    @contextmanager
    def reduced_at_end(self) -> Iterator[None]:
        """Reduce on exit the gradients of all backwards inside."""
        raise RuntimeError(
            "coalesce_grad_reduction() requires ZeRO stage 1 or above: use no_sync()"
        )
        yield

    def shard(self, name: str, tensor: Tensor) -> Tensor:
        """Return this rank's shard of a full tensor shaped like parameter ``name``."""
        del name
        return tensor

    def before_move(self) -> None:
        """Prepare the module for a move or cast of its tensors."""
        return

    def restore(self) -> None:
        """Restore the module's layout between steps after it was moved or cast."""
        return

    @contextmanager
    def gathered(self, once: bool | None = None) -> Iterator[bool]:
        """Keep full parameters inside; yield whether forwards inside gather nothing. Collective.

        ``once``: False keeps gathering in each forward, None only if they do not fit into memory.
        """
        del once
        yield True

    def release(self) -> None:
        """Reshard gathered units that are not in use."""
        return

    def detach(self) -> None:
        """Release the model to another engine."""
        self.drop_gradients()
        self.has_model = False

    def abort_pass(self, *, in_backward: bool) -> None:
        """Reset after a failed pass, on all ranks alike, so that forward can run again.

        ``in_backward``: also drop its unreduced gradients.
        """
        return

    def prepare_for_compile(self) -> None:
        """Remove hooks that torch.compile cannot trace."""
        return

    @property
    def norm_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold different shards of a gradient; None if each rank holds all of it."""
        return None

    @property
    def reduction_order(self) -> int:
        """A number below 2**12 that is the same on all ranks if they reduced in the same order."""
        return 0

    def counted_in_norm(self, gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the reduced gradients that this rank adds to the norm over ``norm_group``.

        ``gradients``: by the name of the master.
        """
        return [*gradients.values()]

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and local shards of the reduced gradients."""
        for name, master in self.masters.items():
            if master.grad is not None:
                yield name, local_part(master.grad)
            elif self.offloaded_gradients is not None and name in self.offloaded_gradients:
                yield name, self.offloaded_gradients[name]

    def names_without_gradient(self) -> list[str]:
        """Return the names of trainable parameters without a gradient."""
        offloaded = self.offloaded_gradients or ()
        return [
            name
            for name, master in self.masters.items()
            if master.requires_grad and master.grad is None and name not in offloaded
        ]

    @torch.no_grad()
    def add_zero_gradients(self, names: Iterable[str]) -> None:
        """Give each of these parameters a reduced gradient of zeros."""
        for name in names:
            if self.offloaded_gradients is not None and self.offloaded_gradients.takes(name):
                self.offloaded_gradients.add_zeros(name)
            else:
                self.masters[name].grad = torch.zeros_like(self.masters[name])

    def unreduced(self) -> Mapping[str, Tensor] | None:
        """Return this rank's unreduced gradient sums by master name; None if there are none."""
        return None

    def unreduced_sums(self) -> Iterable[Tensor]:
        """Return a window's gradient sums that are stored apart from the parameters."""
        return ()

    def drop_reduced(self) -> None:
        """Drop the reduced gradients."""
        for master in self.masters.values():
            master.grad = None
        if self.offloaded_gradients is not None:
            self.offloaded_gradients.clear()

    def drop_gradients(self) -> None:
        """Drop reduced and unreduced gradients, unless another engine has the model."""
        if not self.has_model:
            return
        self.drop_reduced()
        for parameter in self.module.parameters():
            parameter.grad = None

    @torch.no_grad()
    def load_full(self, state: Mapping[str, Tensor], *, strict: bool) -> LoadResult:
        """Load full tensors by name into masters, parameters and buffers.

        One name suffices for tied weights. Raises RuntimeError for wrong shapes and, if ``strict``,
        for missing or unknown names.
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
                f"the weights do not match the model: missing {missing}, unknown {unknown}, "
                f"wrong shape {wrong}"
            )
        for name, tensor in state.items():
            if name in self.aliases:
                master = self.masters[self.aliases[name]]
                shard = self.shard(self.aliases[name], tensor.to(master.device, master.dtype))
                local_part(master).copy_(local_part(shard))
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
