"""Which tensors an optimizer steps: sharded parameters, or this rank's plain parts of them.

[Note: plain parts]
An optimizer that treats every element alone (Adam, SGD ...) gives the same result on each
rank's part as on the whole, and is much faster on plain tensors: fused kernels, no DTensor
dispatch. Any other optimizer (Muon, one of the user's own) keeps the DTensors, on which norms
and matrix products mean those of the whole parameter; Adafactor, which PyTorch cannot run on
them, has a binding of its own. Checkpoints always see the DTensors: ``as_sharded`` puts them in
for as long as it is entered.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from inspect import unwrap
from typing import Any, ClassVar

import torch
from torch import Tensor, nn, optim
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dsconfig import OPTIMIZER_CLASSES
from dsengine.optimizers.lion import Lion
from dsengine.torch_private import as_shard, local_part

ELEMENTWISE = frozenset(
    {
        getattr(optim, each.name.removeprefix("torch."))
        for each in OPTIMIZER_CLASSES.values()
        if each.is_torch and each.is_elementwise
    }
    | {Lion}
)
"""Classes whose update of an element reads no other one."""


def is_elementwise(kind: type[Optimizer]) -> bool:
    """Whether one of ELEMENTWISE does the update: ``kind`` is it, or inherits it as it is.

    A subclass that brings other defaults (``__init__``) or another ``zero_grad`` is as good; one
    that changes anything else of the class may do anything.
    """
    return any(issubclass(kind, base) and not _changes(kind, base) for base in ELEMENTWISE)


def _changes(kind: type[Optimizer], base: type[Optimizer]) -> bool:
    # torch's AdamW has its step from Adam, until the first one is built.
    classes = base.__mro__[: base.__mro__.index(Optimizer)]
    members = {name: value for each in classes for name, value in vars(each).items()}
    own = [name for name, value in members.items() if callable(value) and name != "__init__"]
    # torch wraps ``step`` of a class when it is first built; what is inside is compared.
    return any(unwrap(getattr(kind, name)) is not unwrap(getattr(base, name)) for name in own)


_TRIED = (160, 136)
"""Large enough for what treats matrices, or many elements, in a way of its own."""


_SIZES = (1.0, 100.0, 0.01)
"""Of the gradients in the steps of a trial: what is clipped counts only when it is large."""


def proves_elementwise(optimizer: Optimizer) -> bool:
    """Whether ``optimizer``, of any class, is seen to update every element alone.

    A copy of it takes steps with a matrix, another one with pieces of that, cut anywhere: the
    results have to be the same, with the settings of every group. It may not have stepped yet.
    """
    if is_elementwise(type(optimizer)):
        return True
    with torch.random.fork_rng(devices=[]):
        return all(_is_alike_in_pieces(optimizer, group) for group in optimizer.param_groups)


def _is_alike_in_pieces(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    generator = torch.Generator().manual_seed(0)
    start, *gradients = [
        size * torch.randn(_TRIED, generator=generator, device="cpu", dtype=torch.float32)
        for size in (1.0, *_SIZES)
    ]
    cut = start.numel() // 3 + 1
    try:
        whole = _after(optimizer, group, [start], [[each] for each in gradients])
        pieces = [each.flatten().split(cut) for each in (start, *gradients)]
        in_pieces = _after(optimizer, group, pieces[0], pieces[1:])
    except Exception:  # it needs what only its constructor gives it, or matrices
        return False
    is_same = torch.allclose(whole, in_pieces, rtol=1e-6, atol=1e-7)
    return is_same and not torch.equal(whole, start.flatten())


@torch.no_grad()
def _after(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    start: Sequence[Tensor],
    gradients: Sequence[Sequence[Tensor]],
) -> Tensor:
    """The values, flat, that a copy of ``optimizer`` makes of ``start`` in such a group."""
    parameters = [nn.Parameter(each.clone()) for each in start]
    settings = {**optimizer.defaults, **group, "params": parameters}
    if "lr" in settings:
        settings["lr"] = 0.01  # a schedule begins with one too small to see an update by
    tried = copy(optimizer)
    tried.param_groups, tried.state = [settings], defaultdict(dict)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        unwrap(type(optimizer).step)(tried)  # what wraps it runs the hooks of the script
    return torch.cat([each.detach().flatten() for each in parameters])


class Binding:
    """Holds an optimizer to the parts of ``masters`` that it steps.

    ``parts`` are by name; where the optimizer steps the masters themselves they are these.
    """

    WHOLE_STATES: ClassVar[frozenset[str]] = frozenset()
    """States that every rank holds whole, whatever their shape."""
    offloaded_gradients: Any = None
    """Where gradients go while backward runs, if they leave the device."""

    def __init__(self, optimizer: Optimizer, masters: Mapping[str, nn.Parameter]) -> None:
        divided = is_divided(masters)
        refuse_impossible(optimizer, divided=divided)
        self.optimizer = optimizer
        self.masters = masters
        self.uses_parts = divided and self.steps_parts(type(optimizer))
        self.parts: dict[str, nn.Parameter] = dict(masters)
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        if self.uses_parts:
            self._bind_parts()

    @staticmethod
    def steps_parts(kind: type[Optimizer]) -> bool:
        """Whether such an optimizer is given plain parts."""
        return is_elementwise(kind)

    def gradients(self, reduced: Iterator[tuple[str, Tensor]]) -> list[Tensor]:
        """Return what is measured, clipped and stepped of the reduced gradients."""
        return [gradient for _, gradient in reduced]

    def step(self) -> None:
        """Update the parts."""
        self.optimizer.step()

    def checkpointed(self) -> Mapping[str, Tensor]:
        """Return by name what a checkpoint holds of the masters; valid inside ``as_sharded``."""
        return self.masters

    @contextmanager
    def materialized(self) -> Iterator[None]:
        """Let parts and states have their values inside, to be read and written."""
        yield

    def mark_in_sync(self, name: str) -> None:
        """Hear that a part and its master have been given the same value from outside."""

    def load_target(self, name: str, entry: str) -> Tensor | None:
        """Return what a state of master ``name`` is to be loaded into; valid in ``as_sharded``.

        None where any memory will do.
        """

    def close(self) -> None:
        """Give back what is outside memory."""

    def hand_over_gradients(self) -> None:
        """Give the parts the gradients of their masters."""
        for master, part in self._pairs:
            part.grad = None if master.grad is None else local_part(master.grad)

    def drop_gradients(self) -> None:
        for _, part in self._pairs:
            part.grad = None

    @contextmanager
    def as_sharded(self) -> Iterator[None]:
        """Let the optimizer hold the masters inside; its state follows."""
        if not self.uses_parts:
            yield
            return
        self._exchange({self.parts[name]: master for name, master in self.masters.items()}, _whole)
        try:
            yield
        finally:
            self._bind_parts()

    def _bind_parts(self) -> None:
        self.parts = {name: _part(master) for name, master in self.masters.items()}
        self._pairs = [(self.masters[name], part) for name, part in self.parts.items()]
        self._exchange({self.masters[name]: part for name, part in self.parts.items()}, _local)

    def _exchange(self, new: Mapping[Tensor, nn.Parameter], convert: Any) -> None:
        for group in self.optimizer.param_groups:
            group["params"] = [new[parameter] for parameter in group["params"]]
        state = dict(self.optimizer.state)
        self.optimizer.state.clear()
        for old, entries in state.items():
            self.optimizer.state[new[old]] = {
                key: self._converted(key, value, convert, old, new[old])
                for key, value in entries.items()
            }

    def _converted(self, key: str, value: Any, convert: Any, old: Tensor, new: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        if key in self.WHOLE_STATES:
            return value.full_tensor() if isinstance(value, DTensor) else value
        return convert(value, old, new)


class Unbound(Binding):
    """Without an optimizer there is nothing to step, and nothing that a checkpoint holds of one."""

    def __init__(self, masters: Mapping[str, nn.Parameter]) -> None:
        self.masters = masters
        self.parts, self._pairs = {}, []
        self.uses_parts = False


def is_divided(masters: Mapping[str, nn.Parameter]) -> bool:
    return any(isinstance(master, DTensor) for master in masters.values())


def refuse_impossible(optimizer: Optimizer, *, divided: bool) -> None:
    """Raise ValueError for an optimizer that this loop, or divided parameters, cannot serve."""
    if isinstance(optimizer, optim.LBFGS):
        raise ValueError(
            "LBFGS evaluates the loss several times in a step, which forward, backward and step "
            "of an engine cannot offer: use AdamW"
        )
    if isinstance(optimizer, optim.SparseAdam) and divided:
        raise ValueError(
            "SparseAdam needs sparse gradients, and divided gradients are dense: use "
            "zero_optimization.stage 0 with sparse embeddings, or AdamW"
        )


def _part(master: nn.Parameter) -> nn.Parameter:
    """This rank's part of ``master`` as a parameter on the same storage."""
    if not isinstance(master, DTensor):
        return master
    return nn.Parameter(master.to_local().detach(), requires_grad=master.requires_grad)


@torch.no_grad()
def _local(value: Tensor, old: Tensor, new: Tensor) -> Tensor:
    del old, new
    return value.to_local() if isinstance(value, DTensor) else value


@torch.no_grad()
def _whole(value: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """A state tensor shaped like the part becomes one sharded like the master."""
    if value.dim() == 0 or value.shape != old.shape or not isinstance(new, DTensor):
        return value
    return as_shard(value, new)
