"""Device placement on a machine with GPUs, tested without one.

GPU meshes are made over a fake process group; device tensors are fake.
"""

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import register_pytree_node, tree_leaves

import dsengine
from dsconfig import block_values, tiles
from dsengine import comm
from dsengine.communication.devices import (
    device_for,
    recorded_event,
    select_device,
    threads_on_device,
)
from dsengine.observation import progress
from dsengine.observation.flops import FlopsProfile
from dsengine.observation.timers import Timers
from dsengine.optimizers import build_optimizer, rebind
from dsengine.optimizers.adafactor import AdafactorBinding
from dsengine.optimizers.binding import Binding
from dsengine.optimizers.gradients import global_norm, scale_gradients
from dsengine.optimizers.precision import Policy
from dsengine.parameters.shards import copy_local_slice, full_tensor_of, local_slice_of
from dsengine.sharding.indivisible import Indivisible
from dsengine.simulation.fakes import OperationObserver
from dsengine.tiers import OffloadedBinding, memory
from dsengine.tiers.binding import _to_part
from dsengine.tiers.staging import THREADS, Staging
from dsengine.torch_private.tensors import as_shard
from dsengine.torch_private.units import inputs_to
from engine_storage.offloading import offload_settings
from narrowing import of_type

RANK, WORLD = 5, 8


@pytest.fixture
def world() -> Iterator[None]:
    dist.init_process_group("fake", rank=RANK, world_size=WORLD, store=FakeStore())
    yield
    dist.destroy_process_group()


class Cuda:
    """A fake torch.cuda that records calls."""

    def __init__(self, patch: pytest.MonkeyPatch, current: int = 0, count: int = WORLD) -> None:
        self.chosen: list[Any] = []
        self.waits = 0
        patch.setattr("torch.cuda.is_available", lambda: True)
        patch.setattr("torch.cuda.current_device", lambda: current)
        patch.setattr("torch.cuda.device_count", lambda: count)
        patch.setattr("torch.cuda.set_device", self.chosen.append)
        patch.setattr("torch.cuda.synchronize", self._wait)
        patch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
        # torch's optimizers call these before a step; a CUDA build would load the driver.
        patch.setattr("torch.accelerator.current_accelerator", lambda **_: torch.device("cuda"))
        patch.setattr("torch.accelerator.current_stream", lambda *_: Stream())

    def _wait(self, *_: Any) -> None:
        self.waits += 1


class Stream:
    def is_capturing(self) -> bool:
        return False


class OneDevice(TorchDispatchMode):
    """Refuses operators on tensors of two devices, as kernels do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if "copy" not in func.__name__ and len({tensor.device for tensor in tensors}) > 1:
            raise RuntimeError(f"{func} with tensors of two devices")
        return func(*args, **(kwargs or {}))


# Device selection


@pytest.mark.parametrize(
    ("current", "count", "chosen"), [(0, 8, [5]), (0, 4, [1]), (0, 1, [0]), (3, 8, [])]
)
def test_rank_selects_its_gpu_unless_script_did(
    world: None, monkeypatch: pytest.MonkeyPatch, current: int, count: int, chosen: list[int]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(RANK))
    cuda = Cuda(monkeypatch, current, count)
    select_device()
    assert cuda.chosen == chosen


def test_bound_process_group_selects_the_gpu(world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    bound = torch.device("cuda", 6)
    monkeypatch.setattr(dist.ProcessGroup, "bound_device_id", property(lambda _: bound))
    select_device()
    assert cuda.chosen == [bound]


@pytest.mark.parametrize(
    ("backends", "expected"),
    [(["cuda"], "cuda:2"), (["cpu", "cuda"], "cuda:2"), (["cpu"], "cpu")],
)
def test_group_device_is_one_it_supports(
    monkeypatch: pytest.MonkeyPatch, backends: list[str], expected: str
) -> None:
    Cuda(monkeypatch, current=2)
    group: Any = type("Group", (), {"_device_types": [torch.device(kind) for kind in backends]})()
    assert device_for(group) == torch.device(expected)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device_for(group) == torch.device("cpu")


@pytest.mark.parametrize(
    ("torchs", "on_gpu", "on_cpu"),
    [("cpu:gloo,cuda:nccl", "nccl", "gloo"), ("nccl", "nccl", "nccl"), ("gloo", "gloo", "gloo")],
)
def test_backend_has_the_name_that_scripts_expect(
    monkeypatch: pytest.MonkeyPatch, torchs: str, on_gpu: str, on_cpu: str
) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda *_: torchs)
    assert comm.get_backend() == on_cpu
    Cuda(monkeypatch)
    assert comm.get_backend() == on_gpu


def test_other_accelerators_are_refused(world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their scripts would silently train on the CPU."""
    found = torch.device("mps")
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda **_: found)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    with pytest.raises(ValueError, match="of type 'mps': accelerators other than"):
        select_device()
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    select_device()
    monkeypatch.delenv("DS_ACCELERATOR")
    Cuda(monkeypatch, current=1)
    select_device()


def test_initialize_selects_device(world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def settled() -> None:
        raise InterruptedError

    monkeypatch.setattr("dsengine.loop.initialization.select_device", settled)
    with pytest.raises(InterruptedError):
        dsengine.initialize(model=nn.Linear(1, 1), config={})


# The norm


@pytest.mark.parametrize("on", [["cpu"], ["cuda"], ["cuda", "cpu"], []], ids=str)
def test_norm_is_reduced_on_the_device(
    world: None, monkeypatch: pytest.MonkeyPatch, on: list[str]
) -> None:
    """Offloaded gradients are on the host, with ``ratio`` on both."""
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr("dsengine.optimizers.gradients.device_for", lambda _: gpu)
    sent: list[torch.device] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: sent.append(tensor.device))
    with FakeTensorMode(), OperationObserver(), OneDevice():
        gradients = [torch.ones(3, device=device) for device in on]
        global_norm(gradients, dist.group.WORLD)
        scale_gradients(gradients, 0.5)
    assert sent == [gpu]


# Shards on the host


def offloaded(mesh: DeviceMesh, full: Tensor) -> DTensor:
    """Return this rank's slice of ``full`` on the host, as a shard over a GPU mesh."""
    meta = TensorMeta(full.shape, full.stride(), full.dtype)
    spec = DTensorSpec(mesh, (Shard(0),), tensor_meta=meta)
    return DTensor(full.chunk(WORLD)[RANK].clone(), spec, requires_grad=False)


@pytest.fixture
def shard(world: None) -> DTensor:
    mesh = init_device_mesh("cuda", (WORLD,))
    return offloaded(mesh, torch.arange(32.0).view(16, 2))


def test_full_tensor_is_sliced_on_its_own_device(shard: DTensor) -> None:
    full = torch.arange(32.0).view(16, 2) + 100
    assert torch.equal(local_slice_of(full, shard), full[10:12])
    copy_local_slice(shard, full)
    assert torch.equal(shard.to_local(), full[10:12])
    again = as_shard(shard.to_local().bfloat16(), shard)
    assert again.shape == (16, 2)
    assert again.dtype is again.to_local().dtype is torch.bfloat16
    with pytest.raises(ValueError, match="shape"):
        local_slice_of(full[:3], shard)


def test_uneven_rows_are_sliced_like_torch(world: None) -> None:
    mesh = init_device_mesh("cuda", (WORLD,))
    for rows in (17, 41, 8):
        full = torch.arange(float(rows))
        chunks = full.chunk(WORLD)
        meta = TensorMeta(full.shape, full.stride(), full.dtype)
        spec = DTensorSpec(mesh, (Shard(0),), tensor_meta=meta)
        own = chunks[RANK] if len(chunks) > RANK else full[:0]
        like = DTensor(own, spec, requires_grad=False)
        assert torch.equal(local_slice_of(full, like), own)


def test_offloaded_shard_is_gathered_on_mesh_device(world: None) -> None:
    """With devices swapped, because fakes cannot be moved to a GPU without CUDA."""
    mesh = init_device_mesh("cpu", (WORLD,))
    with FakeTensorMode():
        full = full_tensor_of(offloaded(mesh, torch.zeros(16, 2, device="cuda")))
    assert full.device.type == "cpu"
    assert full.shape == (16, 2)


def test_moments_of_offloaded_parameters_stay_on_the_host(shard: DTensor) -> None:
    master = nn.Parameter(shard)
    optimizer = torch.optim.AdamW([master], lr=0.1, fused=True)
    binding = Binding(optimizer, {"weight": master})
    binding.shards["weight"].grad = torch.ones(2, 2)
    binding.step()
    with binding.as_sharded():
        moment = optimizer.state[master]["exp_avg"]
        assert isinstance(moment, DTensor)
        assert moment.to_local().device.type == "cpu"
        assert moment.shape == (16, 2)
    binding.shards["weight"].grad = torch.ones(2, 2)
    binding.step()


def test_step_count_follows_parameter_of_fused_kernel() -> None:
    for fused, kind in ((True, "meta"), (False, "cpu")):
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.AdamW([weight], fused=fused)
        weight.grad = torch.ones(2)
        optimizer.step()
        master = nn.Parameter(torch.ones(2, device="meta"))
        rebind(optimizer, {weight: "w"}, {"w": master}, lambda _, tensor: tensor.to("meta"))
        assert optimizer.state[master]["step"].device.type == kind


def test_state_of_full_parameter_moves_to_device() -> None:
    """Adagrad creates its state on construction, which may be before the model is moved."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adagrad([weight])
    master = nn.Parameter(torch.ones(2, device="meta"))
    rebind(optimizer, {weight: "w"}, {"w": master}, lambda _, tensor: tensor)
    assert optimizer.state[master]["sum"].device.type == "meta"


def test_nested_inputs_are_moved_to_device() -> None:
    args = ({"ids": torch.ones(1)}, [torch.ones(2)], 3, None)
    args, named = inputs_to(torch.device("meta"), args, {"mask": torch.ones(1)})
    assert {each.device.type for each in tree_leaves((args[:2], named))} == {"meta"}
    assert args[2:] == (3, None)
    assert inputs_to(torch.device("meta"), (), {}) == ((), {})


def test_pinned_inputs_are_copied_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned, plain, moved = torch.ones(1), torch.ones(2), dict[int, bool]()
    to = Tensor.to

    def recorded(tensor: Tensor, *args: Any, non_blocking: bool = False, **more: Any) -> Tensor:
        moved[len(tensor)] = non_blocking
        return to(tensor, *args, non_blocking=non_blocking, **more)

    monkeypatch.setattr(Tensor, "to", recorded)
    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: tensor is pinned)
    args, _ = inputs_to(torch.device("meta"), ({"ids": pinned}, [plain]), {})
    assert {each.device.type for each in tree_leaves(args)} == {"meta"}
    assert moved == {1: True, 2: False}


def test_object_that_the_model_fills_is_passed_itself() -> None:
    """Also if its class is registered with torch, as caches of transformers are."""

    class Cache:
        layers: ClassVar[list[Tensor]] = []

    register_pytree_node(Cache, lambda cache: (cache.layers, None), lambda *_: Cache())
    cache = Cache()
    args, named = inputs_to(torch.device("meta"), (cache,), {"cache": [cache]})
    assert args[0] is cache and named["cache"][0] is cache


def test_step_count_follows_part_to_host() -> None:
    part, master = torch.ones(2), torch.ones(2, device="meta")
    assert _to_part(torch.ones(()), master, part).device.type == "cpu"
    with pytest.raises(
        NotImplementedError, match="meta tensor"
    ):  # a count on the device would be copied
        _to_part(torch.zeros((), device="meta"), master, part)


def test_adagrad_is_fused_on_cpu() -> None:
    for device, fused in (("cpu", True), ("meta", None)):
        weight = nn.Parameter(torch.ones(2, device=device))
        assert build_optimizer("Adagrad", {}, [{"params": [weight]}]).defaults["fused"] is fused


# Device synchronization


def test_adafactor_synchronizes_once_per_norm(world: None) -> None:
    """Once for all parameter norms, once for all update norms; step counts are on the host."""
    mesh = init_device_mesh("cpu", (WORLD,))
    masters = {f"w{i}": nn.Parameter(offloaded(mesh, torch.ones(16, 3))) for i in range(4)}
    optimizer = torch.optim.Adafactor(list(masters.values()), lr=0.1)
    binding = AdafactorBinding(optimizer, masters)
    for part in binding.shards.values():
        part.grad = torch.ones_like(part)
    with Reads() as reads:
        binding.step()
    assert reads.count == len(masters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scalar_parameters_are_reduced_without_waiting(world: None, dtype: torch.dtype) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(3))

    model, group = Scaled(), of_type(dist.group.WORLD, dist.ProcessGroup)
    scalars = Indivisible(model, group)
    mixed = Policy(compute=dtype, wire=dtype, accumulation=torch.float32, autocast=None)
    scalars.initialize(model, torch.device("cpu"), mixed)
    with Reads() as reads:
        sum(2.0 * scale for scale in scalars.parameters).backward()  # type: ignore[union-attr]
        scalars.reduce(1.0)
    assert reads.count == 0
    assert [scalars.masters[p].grad for p in scalars.parameters] == [2.0, 2.0, 2.0]


class Reads(TorchDispatchMode):
    """Counts reads of tensor values."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_flops_profiler_synchronizes_before_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    module = nn.Linear(2, 2)
    profile = FlopsProfile(block_values("flops_profiler", {}), module)
    monkeypatch.setattr("dsengine.observation.flops.time.perf_counter", lambda: 10.0 * cuda.waits)
    with profile.counting():
        module(torch.ones(1, 2))
        assert cuda.waits == 1
    assert cuda.waits == 2
    assert profile._seconds == 10.0  # read after each wait, not before


def test_phases_are_timed_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, times = Cuda(monkeypatch), iter(range(100))

    class Event:
        waited = 0

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.time = next(times)

        def synchronize(self) -> None:
            Event.waited += 1

        def elapsed_time(self, end: "Event") -> float:
            return float(end.time - self.time)

    monkeypatch.setattr("torch.cuda.Event", Event)
    timers = Timers(torch.device("cuda"))
    for name in ("forward", "backward", "forward", "backward", "step"):
        with timers.phase(name):
            pass
    assert (Event.waited, cuda.waits) == (0, 0)
    assert timers.take() == {"forward": 2.0, "backward": 2.0, "step": 1.0}
    assert (Event.waited, cuda.waits) == (1, 0)
    assert timers.take() == {}


def test_progress_reads_only_printed_losses(
    world: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda *_: 0)
    engine: Any = type("Engine", (), {"global_steps": 0, "micro_steps": 0})()
    engine.gradient_accumulation_steps, engine.get_lr = (lambda: 1), (lambda: [0.1])
    with Reads() as reads, progress.Progress(engine, steps=100, tokens_per_step=1) as shown:
        for _ in range(100):
            engine.global_steps += 1
            engine.micro_steps += 1
            shown.update(torch.ones(()))
    assert reads.count == len(capsys.readouterr().out.splitlines()) == 11


# Host memory and threads


def test_checkpoint_thread_uses_the_rank_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch, current=RANK)
    with threads_on_device(1, "a thread") as thread:
        thread.submit(int).result()
    assert cuda.chosen == [RANK]


@pytest.mark.parametrize(("tier", "pinned"), [("cpu", 1), ("nvme", 0)])
def test_parts_stored_on_nvme_are_not_pinned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, tier: str, pinned: int
) -> None:
    """torch caches freed pinned memory, so all parts would stay in host memory."""
    Cuda(monkeypatch)
    pins: list[bool] = []
    empty = torch.empty

    def recorded(*size: Any, pin_memory: bool = False, **more: Any) -> Tensor:
        pins.append(pin_memory)
        return empty(*size, **more)

    def recorded_like(tensor: Tensor, *size: Any, pin_memory: bool = False) -> Tensor:
        pins.append(pin_memory)
        return empty(*size, dtype=tensor.dtype)

    monkeypatch.setattr(torch, "empty", recorded)
    monkeypatch.setattr(Tensor, "new_empty", recorded_like)
    weight = nn.Parameter(torch.ones(4))
    path = str(tmp_path) if tier == "nvme" else None
    settings = offload_settings(pin_memory=True, nvme_path=path)
    binding = OffloadedBinding(torch.optim.AdamW([weight]), {"weight": weight}, settings, {})
    assert sum(pins) == pinned + 1
    pins.clear()
    weight.sum().backward()
    assert not pins  # the gradient sum was allocated before: page-locking waits for the device
    assert torch.equal(binding.offloaded_gradients["weight"], torch.ones(4))
    binding.close()


def test_staging_uses_the_rank_gpu_and_pinned_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the config pins: copies from and to other memory would not be asynchronous."""
    cuda = Cuda(monkeypatch, current=RANK)
    pins: list[bool] = []

    def empty(shape: Any, *, pin: bool) -> Tensor:
        pins.append(pin)
        return torch.empty(shape)

    monkeypatch.setattr(memory, "empty_on_host", empty)
    monkeypatch.setattr(tiles, "PIECE_BYTES", 64)
    buffers, used, consumed = Staging(), set[int](), dict[int, list[int]]()
    targets = torch.zeros(3, 40)

    def consume(into: Tensor, piece: Tensor) -> None:
        used.add(threading.get_ident())
        consumed.setdefault(into.data_ptr(), []).append(int(piece[0]))
        into.add_(piece)

    for step in range(5):
        for target in targets:
            buffers.to_host(torch.full((40,), float(step)), target, consume)
    buffers.wait()
    assert torch.equal(targets, torch.full((3, 40), 10.0))
    assert all(steps == [*range(5)] for steps in consumed.values())
    assert len(consumed) == 9  # pieces of 16, 16 and 8 elements
    assert cuda.chosen == [RANK] * len(used) == [RANK] * THREADS
    assert pins == [True] * tiles.PIECES
    buffers.close()


def test_staging_waits_without_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, bool]] = []

    class Event:
        def __init__(self, **options: bool) -> None:
            made.append(options)

        def record(self, stream: object) -> None:
            pass

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.current_stream", lambda _: Stream())
    recorded_event(torch.device("cuda"))
    assert made == [{"blocking": True}]


def test_dry_run_is_independent_of_local_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import dsconfig
    from dsconfig.facts import hf_config
    from dsengine.simulation.dry_run import simulate

    shape = {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2, "vocab_size": 100}
    tree = dsconfig.gather(model=hf_config.model(shape)).model
    facts = dsconfig.Facts(world_size=WORLD, model=tree)
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": zero,
    }
    resolution = dsconfig.resolve(dsconfig.read(config), facts)
    plan = dsconfig.plan(resolution, facts)
    expected = simulate(plan, tree)
    Cuda(monkeypatch)
    assert simulate(plan, tree) == expected
