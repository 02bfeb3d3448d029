"""Binding of an optimizer to the tensors it steps: sharded parameters, or plain local shards.

[Note: plain shards]
An optimizer that updates every element independently (Adam, SGD ...) computes the same result on
each rank's shard as on the full tensor, and is much faster on plain tensors: fused kernels, no
DTensor dispatch. A script's own class is tested for that (``proves_elementwise``). Any other
optimizer (Muon) gets the DTensors, on which norms and matrix products are those of the full
parameter; Adafactor, which PyTorch does not support on them, has its own binding. Kernels outside
of PyTorch read the memory of a tensor, and a DTensor has none: such optimizers are refused unless
they are elementwise. Checkpoints always see the DTensors: ``as_sharded`` restores them inside.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from inspect import unwrap
from typing import Any, ClassVar

import torch
from torch import Tensor, nn, optim
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dsconfig import OPTIMIZER_CLASSES
from dsconfig.features.table import FEATURES
from dsengine.optimizers import adam
from dsengine.optimizers.lion import Lion
from dsengine.torch_private.tensors import as_shard, local_part

ELEMENTWISE = frozenset(
    {
        getattr(optim, declared.name.removeprefix("torch."))
        for declared in OPTIMIZER_CLASSES.values()
        if declared.is_torch and declared.is_elementwise
    }
    | {Lion, adam.Adam, adam.AdamW}
)
"""Classes that update each element independently of the others."""


KERNEL_PACKAGES = frozenset({"apex", "bitsandbytes", "deepspeed"})
"""Packages whose optimizers have kernels of their own."""


def is_elementwise(kind: type[Optimizer]) -> bool:
    """Whether ``kind`` is in ELEMENTWISE or a subclass that inherits the update unchanged.

    A subclass may change ``__init__`` and ``zero_grad``; any other override may change the update.
    """
    return any(issubclass(kind, base) and not _changes(kind, base) for base in ELEMENTWISE)


def _changes(kind: type[Optimizer], base: type[Optimizer]) -> bool:
    # torch's AdamW inherits its step from Adam until the first one is built.
    classes = base.__mro__[: base.__mro__.index(Optimizer)]
    members = {name: value for cls in classes for name, value in vars(cls).items()}
    own = [name for name, value in members.items() if callable(value) and name != "__init__"]
    # torch wraps ``step`` of a class when it is first built; the inner functions are compared.
    return any(unwrap(getattr(kind, name)) is not unwrap(getattr(base, name)) for name in own)


_TRIAL_SHAPE = (160, 136)
"""Large enough for optimizers that treat matrices or large tensors differently."""


_TRIAL_SCALES = (1.0, 100.0, 0.01)
"""Of the gradients in the trial steps: clipping, for example, only acts on large ones."""


def proves_elementwise(optimizer: Optimizer, device: torch.device | None = None) -> bool:
    """Whether trial steps of ``optimizer`` update every element independently.

    One copy steps a matrix, another one arbitrary pieces of it, with the settings of every group,
    on ``device`` (default: the CPU): the results must be equal, and every state must have one
    element per weight, or one in all. The optimizer must not have stepped yet.
    """
    if is_elementwise(type(optimizer)):
        return True
    device = device or torch.device("cpu")
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        return all(
            _steps_pieces_equally(optimizer, group, device) for group in optimizer.param_groups
        )


def _steps_pieces_equally(
    optimizer: Optimizer, group: Mapping[str, Any], device: torch.device
) -> bool:
    generator = torch.Generator().manual_seed(0)
    drawn = [
        scale * torch.randn(_TRIAL_SHAPE, generator=generator, device="cpu", dtype=torch.float32)
        for scale in (1.0, *_TRIAL_SCALES)
    ]
    start, *gradients = [tensor.to(device) for tensor in drawn]
    size = start.numel() // 3 + 1
    try:
        full = _after_steps(optimizer, group, [start], [[gradient] for gradient in gradients])
        pieces = [tensor.flatten().split(size) for tensor in (start, *gradients)]
        in_pieces = _after_steps(optimizer, group, pieces[0], pieces[1:])
    except Exception:  # it needs matrices, or attributes that its constructor sets
        return False
    is_same = torch.allclose(full, in_pieces, rtol=1e-6, atol=1e-7)
    return is_same and not torch.equal(full, start.flatten())


@torch.no_grad()
def _after_steps(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    start: Sequence[Tensor],
    gradients: Sequence[Sequence[Tensor]],
) -> Tensor:
    """Return the flat values of ``start`` after steps of a copy of ``optimizer``."""
    parameters = [nn.Parameter(tensor.clone()) for tensor in start]
    settings = {**optimizer.defaults, **group, "params": parameters}
    if "lr" in settings:
        settings["lr"] = 0.01  # a schedule may start too small for a visible update
    trial = copy(optimizer)
    for name, value in vars(optimizer).items():
        if isinstance(value, (dict, list, set)):  # the optimizer's own must not change
            setattr(trial, name, copy(value))
    trial.param_groups, trial.state = [settings], defaultdict(dict)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        unwrap(type(optimizer).step)(trial)  # without the wrapper, which runs the script's hooks
    for parameter in parameters:
        _refuse_other_shapes(parameter, trial.state[parameter])
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def _refuse_other_shapes(parameter: Tensor, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        if isinstance(value, Tensor) and value.numel() > 1 and value.shape != parameter.shape:
            raise ValueError(f"{name} has the shape {tuple(value.shape)}")


def is_torch_or_own(kind: type[object]) -> bool:
    """Whether this is a class of torch or of this package, not one derived from it elsewhere."""
    return _package(kind) in ("torch", "dsengine")


def _package(kind: type[object]) -> str:
    return kind.__module__.partition(".")[0]


class Binding:
    """Binds an optimizer to the shards of ``masters`` that it steps.

    ``shards``: by name; if the optimizer steps the masters themselves, these.
    """

    REPLICATED_STATES: ClassVar[frozenset[str]] = frozenset()
    """States that are replicated on every rank, whatever their shape."""
    optimizer: Any
    """None without one."""
    offloaded_gradients: Any = None
    """Storage of gradients during backward if they are offloaded."""

    def __init__(self, optimizer: Optimizer, masters: Mapping[str, nn.Parameter]) -> None:
        sharded = is_sharded(masters)
        check_supported(optimizer, sharded=sharded)
        self.optimizer = optimizer
        self.masters = masters
        self.uses_local_shards = sharded and self.can_step_shards(optimizer, masters)
        self.shards: dict[str, nn.Parameter] = dict(masters)
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        if self.uses_local_shards:
            self._bind_shards()

    @staticmethod
    def can_step_shards(optimizer: Optimizer, masters: Mapping[str, nn.Parameter]) -> bool:
        """Whether this optimizer steps plain local shards.

        Raises ValueError if it can step neither these nor DTensors.
        """
        kind = type(optimizer)
        if is_torch_or_own(kind):
            return is_elementwise(kind)
        package = _package(kind)
        device = local_part(next(iter(masters.values()))).device
        proven = proves_elementwise(optimizer, device)
        if not proven and package in KERNEL_PACKAGES:
            raise ValueError(
                f"{package}'s {kind.__name__}: {FEATURES['other_updates_of_shards'].text}"
            )
        return proven

    def gradients(self, reduced: Iterator[tuple[str, Tensor]]) -> Mapping[str, Tensor]:
        """Return by name the gradients to measure, clip and step."""
        return dict(reduced)

    def step(self) -> None:
        """Update the shards."""
        self.optimizer.step()

    def trained(self, names: Iterable[str]) -> list[str]:
        """Return the names of masters that the optimizer updates with dense gradients."""
        if isinstance(self.optimizer, optim.SparseAdam):
            return []
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        return [name for name in names if id(self.shards.get(name)) in held]

    def checkpoint_masters(self) -> Mapping[str, Tensor]:
        """Return the masters by name for a checkpoint; valid inside ``as_sharded``."""
        return self.masters

    @contextmanager
    def materialized(self) -> Iterator[None]:
        """Make shards and states readable and writable inside."""
        yield

    def mark_in_sync(self, name: str) -> None:
        """Record that a shard and its master have been set to the same value externally."""

    def load_target(self, name: str, entry: str, shape: torch.Size) -> Tensor | None:
        """Return the tensor to load a state of master ``name`` into, or None for a new one.

        ``shape``: of the saved state. Valid inside ``as_sharded``. Raises ValueError for a state
        that cannot be loaded.
        """

    def close(self) -> None:
        """Release files and other storage outside of memory."""

    def assign_gradients(self) -> None:
        """Assign the gradients of the masters to the shards."""
        for master, shard in self._pairs:
            shard.grad = None if master.grad is None else local_part(master.grad)

    def drop_gradients(self) -> None:
        for _, shard in self._pairs:
            shard.grad = None

    @contextmanager
    def as_sharded(self) -> Iterator[None]:
        """Bind the optimizer, with its state, to the masters inside."""
        if not self.uses_local_shards:
            yield
            return
        self._replace({self.shards[name]: m for name, m in self.masters.items()}, _to_sharded)
        try:
            yield
        finally:
            self._bind_shards()

    def _bind_shards(self) -> None:
        self.shards = {name: _local_shard(master) for name, master in self.masters.items()}
        self._pairs = [(self.masters[name], shard) for name, shard in self.shards.items()]
        self._replace({self.masters[name]: s for name, s in self.shards.items()}, _to_local)

    def _replace(self, new: Mapping[Tensor, nn.Parameter], convert: Any) -> None:
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
        if key in self.REPLICATED_STATES:
            return value.full_tensor() if isinstance(value, DTensor) else value
        return convert(value, old, new)


class NoOptimizerBinding(Binding):
    """The binding without an optimizer: nothing to step or to save."""

    def __init__(self, masters: Mapping[str, nn.Parameter]) -> None:
        self.optimizer = None
        self.masters = masters
        self.shards, self._pairs = {}, []
        self.uses_local_shards = False


def is_sharded(masters: Mapping[str, nn.Parameter]) -> bool:
    return any(isinstance(master, DTensor) for master in masters.values())


def check_supported(optimizer: Optimizer, *, sharded: bool) -> None:
    """Raise ValueError for an optimizer that the engine, or sharded parameters, cannot support."""
    if isinstance(optimizer, optim.LBFGS):
        raise ValueError(FEATURES["closures"].text)
    if isinstance(optimizer, optim.SparseAdam) and sharded:
        raise ValueError(FEATURES["sparse_optimizer"].text)


def _local_shard(master: nn.Parameter) -> nn.Parameter:
    """Return this rank's shard of ``master`` as a parameter that shares its storage."""
    if not isinstance(master, DTensor):
        return master
    return nn.Parameter(master.to_local().detach(), requires_grad=master.requires_grad)


@torch.no_grad()
def _to_local(value: Tensor, old: Tensor, new: Tensor) -> Tensor:
    del old, new
    return value.to_local() if isinstance(value, DTensor) else value


@torch.no_grad()
def _to_sharded(value: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Convert a state tensor of the shard's shape to one sharded like the master."""
    if value.dim() == 0 or value.shape != old.shape or not isinstance(new, DTensor):
        return value
    return as_shard(value, new)
