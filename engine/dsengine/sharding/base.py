"""The interfaces between the engine and the mechanisms that distribute a model.

A ``Sharding`` stores and gathers the parameters: it is built first, and lasts until another engine
has the model. ``Gradients`` reduce and sum its gradients: they are built once the optimizer is
bound, because an offloaded optimizer stores the gradients too.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakMethod

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
        self.has_model = True
        """False once another ``initialize`` has taken the model over."""
        self._at_detach: list[WeakMethod[Callable[[], None]]] = []

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""

    @abstractmethod
    def after_update(self, *, frozen: bool = True) -> None:
        """Copy the masters' values into the module.

        ``frozen``: also those that no optimizer updates.
        """

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

    def prepare_for_compile(self) -> None:
        """Remove hooks that torch.compile cannot trace."""
        return

    def at_detach(self, release: Callable[[], None]) -> None:
        """Call the method ``release``, if its object still exists, before the model is released."""
        self._at_detach.append(WeakMethod(release))

    def detach(self) -> None:
        """Release the model to another engine."""
        for reference in self._at_detach:
            if (release := reference()) is not None:
                release()
        self.has_model = False

    @torch.no_grad()
    def load_full(self, state: Mapping[str, Tensor], *, strict: bool) -> LoadResult:
        """Load full tensors by name into masters, parameters and buffers.

        One name suffices for tied weights. Raises RuntimeError for wrong shapes and, if ``strict``,
        for missing or unknown names.
        """
        buffers = {
            f"{prefix}.{name}" if prefix else name: buffer
            for prefix, module in self.module.named_modules()
            for name, buffer in persistent_buffers(module)
        }
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


class Gradients(ABC):
    """The gradients of a distributed model: when they are reduced, and their sums over a window.

    ``offloaded``: storage of reduced gradients on the optimizer's tier, if it is offloaded.
    """

    def __init__(self, sharding: Sharding, offloaded: OffloadedGradients | None) -> None:
        self._sharding = sharding
        self._masters = sharding.masters
        self.offloaded = offloaded

    @abstractmethod
    def before_backward(self, roots: Sequence[Tensor], reduce: bool) -> None:
        """Prepare a backward of ``roots``; ``reduce``: whether it must reduce gradients."""

    @abstractmethod
    def after_backward(self) -> None:
        """Finish a backward's reductions."""

    @contextmanager
    def reduced_at_end(self) -> Iterator[None]:
        """Reduce on exit the gradients of all backwards inside."""
        raise RuntimeError(
            "coalesce_grad_reduction() requires ZeRO stage 1 or above: use no_sync()"
        )
        yield

    @abstractmethod
    def abort_pass(self, *, in_backward: bool) -> None:
        """Reset after a failed pass, on all ranks alike, so that forward can run again.

        ``in_backward``: also drop its unreduced gradients.
        """

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

    def reduced(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and local shards of the reduced gradients."""
        for name, master in self._masters.items():
            if master.grad is not None:
                yield name, local_part(master.grad)
            elif self.offloaded is not None and name in self.offloaded:
                yield name, self.offloaded[name]

    def missing(self) -> list[str]:
        """Return the names of trainable parameters without a reduced gradient."""
        offloaded = self.offloaded or ()
        return [
            name
            for name, master in self._masters.items()
            if master.requires_grad and master.grad is None and name not in offloaded
        ]

    @torch.no_grad()
    def add_zeros(self, names: Iterable[str]) -> None:
        """Give each of these parameters a reduced gradient of zeros."""
        for name in names:
            if self.offloaded is not None and self.offloaded.takes(name):
                self.offloaded.add_zeros(name)
            else:
                self._masters[name].grad = torch.zeros_like(self._masters[name])

    def unreduced(self) -> Mapping[str, Tensor] | None:
        """Return this rank's unreduced gradient sums by master name; None if there are none."""
        return None

    def unreduced_sums(self) -> Iterable[Tensor]:
        """Return a window's gradient sums that are stored apart from the parameters."""
        return ()

    def drop_reduced(self) -> None:
        """Drop the reduced gradients."""
        for master in self._masters.values():
            master.grad = None
        if self.offloaded is not None:
            self.offloaded.clear()

    def drop(self) -> None:
        """Drop reduced and unreduced gradients, unless another engine has the model."""
        if not self._sharding.has_model:
            return
        self.drop_reduced()
        for parameter in self._sharding.module.parameters():
            parameter.grad = None

    def release(self) -> None:
        """Drop all gradients and what is registered on the model: another engine takes it over."""
        self.drop()
