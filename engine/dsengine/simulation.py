"""Dry run: the engine's own code on fake tensors and a fake process group, at any world size.

No rank but this process, no GPU, no memory: what the engine would hold and send is counted
while ``initialize``, forward, backward and step run as they are. The model is a stand-in with
the module tree, shapes and dtypes of the plan's model whose forward uses each parameter once,
so activations are not in these figures; everything the engine holds itself is.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dsconfig import ModelTree, ModuleFact, Plan
from dsengine.memory import LiveBytes

STEPS = 2
"""The second step has the optimizer's state, which the first one makes."""
PHASES = ("init", "forward", "backward", "step")


def simulate(plan: Plan, model: str | ModelTree | nn.Module | None) -> dict[str, Any]:
    """Peak bytes of rank 0 by phase, and bytes sent in one step by collective.

    ``model``: a catalogue name, a tree, or a module built on the meta device. Raises ValueError
    at stage 0 (DistributedDataParallel's reducer is C++ that needs real memory), for a model
    whose tensors are not known, and where a process group is already running.
    """
    if plan.effective.zero.stage == 0:
        raise ValueError("a dry run needs stage 1, 2 or 3: at stage 0 use dsconfig estimate")
    if model is None:
        raise ValueError("a dry run needs the tensors of the model: give --model")
    if dist.is_initialized():
        raise ValueError("a dry run needs a process group of its own; one is already running")
    live = LiveBytes(torch.device("cpu"), existing=False)
    traffic = _Traffic()
    with _fake_world(plan), FakeTensorMode(allow_non_fake_inputs=True):
        live.start("init")
        module = model if isinstance(model, nn.Module) else stand_in(_tree(model))
        _run(_without_norm(plan), module, live, traffic)
    return {
        "world_size": plan.mesh.world_size,
        "phases": {phase: live.peaks[phase] for phase in PHASES},
        "traffic": dict(traffic.sent),
    }


def _run(plan: Plan, module: nn.Module, live: LiveBytes, traffic: "_Traffic") -> None:
    from dsengine.initialization import initialize

    engine, *_ = initialize(model=module, plan=plan)
    tokens = torch.zeros(1)
    for step in range(STEPS):
        for micro in range(plan.batch.accumulation):
            last = step == STEPS - 1
            # As in the estimate, a phase is that of the micro batch that ends the window.
            counted = last and micro == plan.batch.accumulation - 1
            with traffic if last else nullcontext():
                live.enter("forward" if counted else "before")
                loss = engine(tokens)
                live.enter("backward" if counted else "before")
                engine.backward(loss)
                live.enter("step" if counted else "before")
                engine.step()
    live.stop()
    engine.destroy()


def _without_norm(plan: Plan) -> Plan:
    """The plan without what reads values: fake tensors have none."""
    effective = plan.effective
    gradients = replace(effective.gradients, clipping=0.0, compute_norm=False)
    numerics = replace(effective.numerics, check_grad_overflow=False)
    reporting = replace(effective.reporting, steps_per_print=None)
    changed = replace(effective, gradients=gradients, numerics=numerics, reporting=reporting)
    return replace(plan, effective=changed)


def _tree(model: str | ModelTree) -> ModelTree:
    if isinstance(model, ModelTree):
        return model
    from dsconfig import gather

    tree = gather(model=model).model
    assert tree is not None
    return tree


@contextmanager
def _fake_world(plan: Plan) -> Iterator[None]:
    """A process group whose collectives do nothing.

    Two things of ``initialize`` need real values and are taken out of it: the mesh is made
    here, and the ranks (there is one) are not asked whether they agree.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from dsengine import initialization, sharding

    dist.init_process_group("fake", rank=0, world_size=plan.mesh.world_size, store=FakeStore())
    mesh = sharding.device_mesh(plan, torch.device("cpu"))
    try:
        with (
            _replaced(sharding, "device_mesh", lambda *_: mesh),
            _replaced(initialization, "check_agreement", lambda *_: None),
        ):
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name, None)
    if original is None:
        yield
        return
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


class _Traffic(TorchDispatchMode):
    """Bytes each collective moves through one rank: the whole tensor that is reduced, gathered
    or broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.partition("::")[2].strip("_")
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            self.sent[name] += max((each.nbytes for each in tensors), default=0)
        return func(*args, **(kwargs or {}))


def stand_in(tree: ModelTree) -> nn.Module:
    """A module with this tree's modules and parameters. Raises ValueError without a layout."""
    if tree.root is None:
        raise ValueError(
            f"{tree.name}: the tensors of this model are not known; a dry run needs --model"
        )
    return _Module(tree.root, {})


class _Module(nn.Module):
    """One module of the tree; its forward adds up its own parameters, then runs its children."""

    def __init__(self, fact: ModuleFact, shared: dict[str, nn.Parameter]) -> None:
        super().__init__()
        prefix = f"{fact.name}." if fact.name else ""
        for tensor in fact.parameters:
            storage = tensor.storage or prefix + tensor.name
            if storage not in shared:
                values = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
                shared[storage] = nn.Parameter(values, tensor.trainable)
            self.register_parameter(tensor.name, shared[storage])
        for child in fact.children:
            self.add_module(child.name.rpartition(".")[2], _Module(child, shared))

    def forward(self, hidden: Tensor) -> Tensor:
        for parameter in self._parameters.values():
            if parameter is not None:
                hidden = hidden + parameter.sum()
        for child in self._modules.values():
            if child is not None:
                hidden = child(hidden)
        return hidden.sum() if hidden.dim() else hidden
