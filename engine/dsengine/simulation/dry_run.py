"""Dry run: the engine's own code on fake tensors and a fake process group, at any world size.

No GPU, no memory, no rank but this process: what the engine would hold and send is counted
while ``initialize``, forward, backward and step run as they are. Given the model's tensors
only, the module is a stand-in with its tree, shapes and dtypes whose forward uses each
parameter once: activations are not in its figures, everything the engine holds itself is.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dsconfig
from dsconfig import ModelTree, Plan
from dsengine.observation.communication import CommunicationLog
from dsengine.observation.memory import LiveBytes
from dsengine.optimizers import build as optimizer_building
from dsengine.simulation.fakes import OperationObserver, stand_in
from dsengine.simulation.memory_placement import MemoryPlacement
from dsengine.tiers import memory
from dsengine.torch_private import fake_process_group, fake_tensors, replaced

STEPS = 2
"""The second step has the optimizer's state, which the first one makes."""
PHASES = ("init", "forward", "backward", "step")


def simulate(
    plan: Plan,
    model: str | ModelTree | Callable[[], nn.Module] | None,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    rank: int = 0,
    device: str = "cuda",
) -> dict[str, Any]:
    """Peak bytes of one rank by phase, and bytes sent in one step by collective.

    ``model``: a catalogue name, a tree, or what builds the module; with the last, ``loss`` runs
    one forward: it gets the engine and returns a scalar. ``device``: on ``cpu`` ranks exchange
    as over gloo, and all is in the same memory; elsewhere the model comes from main memory, and
    ``host`` tells by phase what this rank has there, and ``nvme`` what it has in files, of which
    none is written. Raises ValueError for a model whose tensors are not known, for files where all
    is in the same memory, and where a process group is already running.
    """
    if model is None:
        raise ValueError("a dry run needs the tensors of the model: give --model")
    zero, apart = plan.effective.zero, device != "cpu"
    files = "nvme" in (zero.optimizer_tier, zero.parameter_tier)
    if files and not apart:
        raise ValueError("a dry run on the CPU writes no files: set the device of offload_* to cpu")
    if dist.is_initialized():
        raise ValueError("a dry run needs a process group of its own; one is already running")
    if not callable(model):
        model = partial(stand_in, _tree(model))
    places, sent = MemoryPlacement(), CommunicationLog(_every_collective())
    live = _Live(places, files=files)
    with (
        warnings.catch_warnings(),
        _fake_world(plan, rank, device),
        fake_tensors(),
        OperationObserver([places.mark, live.see] if apart else [live.see]),
        places.simulated() if apart else replaced(memory, "empty_on_host", _plainly),
    ):
        # Nothing has an address here, so that what asks for one finds all in their places.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
        engine = _initialized(_quiet(plan), model, live, places, device)
        _train(engine, plan.batch.accumulation, loss or (lambda e: e(torch.zeros(1))), live, sent)
    return {
        "world_size": plan.mesh.world_size,
        "phases": {phase: live.device.peaks[phase] for phase in PHASES},
        **(_below(live) if apart else {}),
        "traffic": _by_collective(sent),
    }


class _Live:
    """What is held on the device, and in main memory where that is another one."""

    def __init__(self, places: MemoryPlacement, *, files: bool) -> None:
        cpu = torch.device("cpu")
        self.device = LiveBytes(cpu, existing=False, counts=places.is_on_device, watches=False)
        self.host = LiveBytes(cpu, counts=places.is_on_host, watches=False)
        self.files = LiveBytes(cpu, counts=places.is_in_file, watches=False)
        self._all = (self.device, self.host, self.files)[: 3 if files else 2]

    def start(self, phase: str, existing: Sequence[Tensor]) -> None:
        for each in self._all:
            each.start(phase, existing)

    def see(self, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        for each in self._all:
            each.see(given, made)

    def enter(self, phase: str) -> None:
        for each in self._all:
            each.enter(phase)

    def stop(self) -> None:
        for each in reversed(self._all):
            each.stop()


def _below(live: _Live) -> dict[str, dict[str, int]]:
    tiers = {"host": live.host, "nvme": live.files}
    return {n: {phase: each.peaks.get(phase, 0) for phase in PHASES} for n, each in tiers.items()}


def _initialized(
    plan: Plan, build: Callable[[], nn.Module], live: _Live, places: MemoryPlacement, device: str
) -> Any:
    """The engine, measured from the building of the model on where main memory is the device."""
    from dsengine.loop.initialization import initialize

    if device == "cpu":
        live.start("init", existing=())
        engine, *_ = initialize(model=build(), plan=plan)
        return engine
    module = build()
    built = [*module.parameters(), *module.buffers()]
    places.put_on_host(built)
    live.start("init", existing=built)
    del built
    with replaced(optimizer_building, "device_types", lambda groups: {device}):
        engine, *_ = initialize(model=module, plan=plan)
    del module
    for group in engine.optimizer.param_groups if engine.optimizer else ():
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True  # torch's default on a GPU, which tensors of the CPU hide
    return engine


def _train(
    engine: Any,
    accumulation: int,
    loss_of: Callable[[Any], Tensor],
    live: _Live,
    sent: CommunicationLog,
) -> None:
    for step in range(STEPS):
        for micro in range(accumulation):
            last = step == STEPS - 1
            # As in the estimate, a phase is that of the micro batch that ends the window.
            counted = last and micro == accumulation - 1
            with sent if last else nullcontext():
                live.enter("forward" if counted else "before")
                loss = loss_of(engine)
                live.enter("backward" if counted else "before")
                engine.backward(loss)
                del loss
                live.enter("step" if counted else "before")
                engine.step()
    live.stop()
    engine.destroy()


def _plainly(shape: Sequence[int], *, pin: bool) -> Tensor:
    """Memory that a fake tensor can be in."""
    del pin
    return torch.empty(shape, dtype=torch.float32)


def _quiet(plan: Plan) -> Plan:
    """The plan without what would print or write.

    Reductions are counted by the log, past which the reducer of stage 0 goes on its own: asked
    for a log, the engine does them itself.
    """
    reporting = replace(
        plan.effective.reporting,
        steps_per_print=None,
        monitors={},
        comms_logger=_every_collective(),
    )
    return replace(plan, effective=replace(plan.effective, reporting=reporting))


def _every_collective() -> dict[str, Any]:
    """The block of a log of all collectives, which a config has to say nothing for."""
    return dsconfig.block_values("comms_logger", {})


def _by_collective(sent: CommunicationLog) -> dict[str, int]:
    """Bytes each collective moves through one rank: the whole of what is reduced or gathered."""
    total: Counter[str] = Counter()
    for (name, size), count in sent.counts.items():
        total[name] += size * count
    return dict(total)


def _tree(model: str | ModelTree) -> ModelTree:
    if isinstance(model, ModelTree):
        return model
    tree = dsconfig.gather(model=model).model
    assert tree is not None
    return tree


@contextmanager
def _fake_world(plan: Plan, rank: int, device: str) -> Iterator[None]:
    """A process group whose collectives do nothing; on the CPU it passes for one of gloo's.

    Two things of ``initialize`` need real values and are taken out of it: the mesh is made
    here, and the ranks (there is one) are not asked whether they agree. Devices and memory of
    this machine play no part: every tensor counts as one of the host.
    """
    from dsengine import sharding
    from dsengine.loop import initialization

    backend = "gloo" if device == "cpu" else "fake"
    with fake_process_group(rank, plan.mesh.world_size, backend):
        mesh = sharding.device_mesh(plan, torch.device("cpu"))
        with (
            replaced(sharding, "device_mesh", lambda *_: mesh),
            replaced(initialization, "check_agreement", lambda *_: None),
            replaced(initialization, "refuse_insufficient_memory", lambda *_: None),
            replaced(initialization, "refuse_unusable_files", lambda *_: None),
        ):
            yield
