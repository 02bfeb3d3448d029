"""Dry run: the engine on fake tensors and a fake process group, at any world size.

It needs no GPU, memory or other process: ``initialize``, forward, backward and step run unchanged,
and what the engine allocates and sends is counted. If only the model's tensors are known, the
module is a stand-in with the same tree, shapes and dtypes whose forward uses each parameter once;
the figures then exclude activations.
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
from torch.optim import Optimizer

import dsconfig
from dsconfig import ModelTree, Plan
from dsconfig.features.table import FEATURES
from dsengine.observation.communication import CommunicationLog
from dsengine.observation.memory import LiveBytes
from dsengine.optimizers import build as optimizer_building
from dsengine.parameters.quantized import quantization_constants
from dsengine.simulation.fakes import OperationObserver, stand_in_module
from dsengine.simulation.memory_placement import MemoryPlacement
from dsengine.tiers import memory
from dsengine.topology import Topology
from dsengine.torch_private.dry_runs import fake_process_group, fake_tensors, real_reshard_meshes
from dsengine.torch_private.tensors import replaced

STEPS = 2
"""The second step includes the optimizer state that the first one creates."""
PHASES = ("init", "forward", "backward", "step")


def simulate(
    plan: Plan,
    model: str | ModelTree | Callable[[], nn.Module] | None,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    rank: int = 0,
    device: str = "cuda",
    optimizer: Callable[[Any], Optimizer] | None = None,
    base_weights: str | None = None,
) -> dict[str, Any]:
    """Return peak bytes of one rank by phase, and bytes sent in one step by collective.

    ``model``: a catalogue name, a tree, or a function that builds the module; with a function,
    ``loss`` runs one forward: it takes the engine and returns a scalar. ``device``: on ``cpu``
    ranks communicate as over gloo and there is one memory; otherwise the model starts in host
    memory, and ``host`` and ``nvme`` report by phase what this rank has in host memory and in files
    (none is written). ``optimizer``: a script's own, as ``initialize`` takes it. ``base_weights``:
    4bit or 8bit, how frozen linear layers of a name or tree are stored. Raises
    ValueError for a model whose tensors are unknown, for files with ``device`` cpu, and if a
    process group is running.
    """
    if model is None:
        raise ValueError("a dry run requires the tensors of the model: specify --model")
    zero, has_host = plan.effective.zero, device != "cpu"
    files = "nvme" in (zero.optimizer_tier, zero.parameter_tier)
    if files and not has_host:
        raise ValueError(FEATURES["files_of_dry_runs"].text)
    if dist.is_initialized():
        raise ValueError("a dry run requires its own process group, but one is already running")
    if not callable(model):
        model = partial(stand_in_module, _tree(model), base_weights)
    placement, sent = MemoryPlacement(), CommunicationLog(_every_collective())
    live = _Live(placement, files=files)
    with (
        warnings.catch_warnings(),
        _fake_world(plan, rank, device),
        fake_tensors(),
        OperationObserver([placement.mark, live.see] if has_host else [live.see]),
        placement.simulated() if has_host else replaced(memory, "empty_on_host", _empty_tensor),
    ):
        # Fake tensors have no address; code that compares addresses sees them as equal.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
        engine = _initialized(_quiet(plan), model, live, placement, device, optimizer)
        _train(engine, plan.batch.accumulation, loss or (lambda e: e(torch.zeros(1))), live, sent)
    return {
        "world_size": plan.mesh.world_size,
        "phases": {phase: live.device.peaks[phase] for phase in PHASES},
        **(_tier_peaks(live) if has_host else {}),
        "traffic": _by_collective(sent),
    }


class _Live:
    """Live bytes on the device, in host memory and in files."""

    def __init__(self, placement: MemoryPlacement, *, files: bool) -> None:
        cpu = torch.device("cpu")
        self.device = LiveBytes(cpu, existing=False, counts=placement.is_on_device, watches=False)
        self.host = LiveBytes(cpu, counts=placement.is_on_host, watches=False)
        self.files = LiveBytes(cpu, counts=placement.is_in_file, watches=False)
        self._tiers = (self.device, self.host, self.files)[: 3 if files else 2]

    def start(self, phase: str, existing: Sequence[Tensor]) -> None:
        for tier in self._tiers:
            tier.start(phase, existing)

    def see(self, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        for tier in self._tiers:
            tier.see(given, made)

    def enter(self, phase: str) -> None:
        for tier in self._tiers:
            tier.enter(phase)

    def stop(self) -> None:
        for tier in reversed(self._tiers):
            tier.stop()


def _tier_peaks(live: _Live) -> dict[str, dict[str, int]]:
    tiers = {"host": live.host, "nvme": live.files}
    return {n: {phase: tier.peaks.get(phase, 0) for phase in PHASES} for n, tier in tiers.items()}


def _initialized(
    plan: Plan,
    build: Callable[[], nn.Module],
    live: _Live,
    placement: MemoryPlacement,
    device: str,
    optimizer: Callable[[Any], Optimizer] | None,
) -> Any:
    """Return the engine; with host memory as the device, building the model is measured too."""
    from dsengine.loop.initialization import initialize

    if device == "cpu":
        live.start("init", existing=())
        engine, *_ = initialize(model=build(), plan=plan, optimizer=optimizer)
        return engine
    module = build()
    constants = [tensor for _, tensor in quantization_constants(module)]
    built = [*module.parameters(), *module.buffers(), *constants]
    placement.put_on_host(built)
    live.start("init", existing=built)
    del built, constants
    with replaced(optimizer_building, "device_types", lambda groups: {device}):
        engine, *_ = initialize(model=module, plan=plan, optimizer=optimizer)
    del module
    for group in engine.optimizer.param_groups if engine.optimizer else ():
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True  # torch's default on a GPU; here all tensors are on the CPU
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
            # As in the estimate, measure the micro batch that ends the window.
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


def _empty_tensor(shape: Sequence[int], *, pin: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    """Replace ``empty_on_host``: fake tensors cannot use mapped memory."""
    del pin
    return torch.empty(shape, dtype=dtype)


def _quiet(plan: Plan) -> Plan:
    """Return the plan without reports that print or write.

    The communication log is enabled because stage 0's reducer bypasses the dispatcher; with a log,
    the engine runs its collectives itself.
    """
    reporting = replace(
        plan.effective.reporting,
        steps_per_print=None,
        monitors={},
        comms_logger=_every_collective(),
    )
    return replace(plan, effective=replace(plan.effective, reporting=reporting))


def _every_collective() -> dict[str, Any]:
    """Return the ``comms_logger`` block with its defaults, which counts all collectives."""
    return dsconfig.block_values("comms_logger", {})


def _by_collective(sent: CommunicationLog) -> dict[str, int]:
    """Return bytes per collective on one rank, counting the full tensor reduced or gathered."""
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
    """A fake process group; on the CPU it reports backend gloo.

    Two parts of ``initialize`` need real values and are replaced: the topology is created here, and
    ranks do not check agreement. This machine's devices and memory are ignored: every tensor is on
    the host.
    """
    from dsengine.loop import initialization

    backend = "gloo" if device == "cpu" else "fake"
    with fake_process_group(rank, plan.mesh.world_size, backend):
        topology = Topology(plan.mesh, "cpu")
        if plan.effective.zero.stage:
            assert topology.state_mesh  # built from real tensors
        with (
            real_reshard_meshes(),
            replaced(initialization, "Topology", lambda *_: topology),
            replaced(initialization, "check_agreement", lambda *_: None),
            replaced(initialization, "refuse_insufficient_memory", lambda *_: None),
            replaced(initialization, "refuse_unusable_files", lambda *_: None),
        ):
            yield
