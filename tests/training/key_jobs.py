"""A short training run and everything observable in it, to show the effect of a config key."""

import gc
import io
import logging
from contextlib import ExitStack, contextmanager, redirect_stderr
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.utils.data import TensorDataset

import dsengine
from dsengine.sharding.fully_sharded import FullySharded
from dsengine.sharding.units import offload_policy
from dsengine.sharding.zero.status import is_watched
from dsengine.tiers import OffloadedBinding
from dsengine.torch_private.units import parameter_groups
from narrowing import of_type
from training import models
from training.engine_api_jobs import Double, _message

MICRO_BATCHES = 4


def probe(settings: dict[str, Any], infinite_at: int = -1) -> dict[str, Any]:
    """Return observations of an engine that trains ``MICRO_BATCHES`` micro batches.

    The loss of micro batch ``infinite_at`` is infinite. A refused config returns only its message.
    """
    torch.manual_seed(0)
    logging.getLogger("dsengine").setLevel(logging.NOTSET)
    logging.getLogger("dsengine.script").setLevel(logging.INFO)
    samples = TensorDataset(torch.arange(19))
    screen = io.StringIO()
    with redirect_stderr(screen), _recorded() as seen:
        try:
            engine, *_ = dsengine.initialize(
                model=models.tied(), config=settings, training_data=samples
            )
        except ValueError as error:
            return {"refused": str(error)}
        seen |= _built(engine)
        seen["garbage"] = gc.isenabled()
        seen |= _trained(engine, infinite_at)
        seen["saved"] = engine.zero_optimization_stage() < 3 or _saves_16bit(engine)
        engine.destroy()
    seen["output"] = screen.getvalue()
    return seen


@contextmanager
def _recorded() -> Any:
    """Record the dtypes of layer outputs and what stage 0 sends."""
    seen: dict[str, Any] = {"outputs": set(), "sent": []}
    reduce, linear = dist.all_reduce, nn.Linear.forward

    def all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("async_op"):
            seen["sent"].append((str(tensor.dtype), round(tensor.double().norm().item(), 6)))
        return reduce(tensor, *args, **kwargs)

    def forward(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
        outputs = linear(layer, inputs)
        seen["outputs"].add(str(outputs.dtype))
        return outputs

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(dist, "all_reduce", all_reduce))
        patches.enter_context(mock.patch.object(nn.Linear, "forward", forward))
        yield seen
    seen["outputs"] = sorted(seen["outputs"])


def _built(engine: Any) -> dict[str, Any]:
    binding, plan = engine.binding, engine.plan
    storage = getattr(binding, "storage", None)
    tiles = [len(getattr(binding, name, ())) for name in ("device_tiles", "host_tiles")]
    units = [m for m in engine.module.modules() if isinstance(m, FSDPModule)]
    groups = [group for unit in units for group in parameter_groups(unit)]
    return {
        "mechanism": [
            type(engine.sharding).__name__,
            len(getattr(engine.sharding, "unsharded", ())),
        ],
        "parameter": str(engine.module.scale.dtype),
        "buffer": str(engine.module.steps_seen.dtype),
        "masters": sorted({str(part.dtype) for part in binding.shards.values()}),
        "units": [unit.modules for unit in plan.stages[0].units],
        "unsharded": [unit.modules for unit in plan.stages[0].units if not unit.gather],
        "reshard": [unit.reshard_after_forward for unit in plan.stages[0].units],
        "prefetch": [unit.prefetch for unit in plan.stages[0].units],
        "unused": [getattr(group, "reduce_scatter_unused_params", False) for group in groups],
        "collectives": sorted(
            {
                type(comm).__name__
                for g in groups
                for comm in (g._all_gather_comm, g._reduce_scatter_comm)
            }
        ),
        "parameters on": sorted({type(group.offload_policy).__name__ for group in groups}),
        "binding": type(binding).__name__,
        "storage": type(storage).__name__,
        "tiles": tiles,
        "buffers": len(getattr(storage, "_buffers", ())),
        "folder": str(getattr(storage, "directory", "")),
        "blocks": getattr(getattr(storage, "_io", None), "_block", 0),
        "in flight": getattr(getattr(storage, "_io", None), "_in_flight", 0),
        "optimizer": type(engine.optimizer).__name__,
        "schedule": type(engine.lr_scheduler).__name__,
        "scale": engine.loss_scale,
        "batches": [len(batch[0]) for batch in engine.training_dataloader],
        "level": logging.getLogger("dsengine").level,
        "watched": [is_watched(master) for master in engine.sharding.masters.values()],
    }


def _trained(engine: Any, infinite_at: int) -> dict[str, Any]:
    curve, norms, failure = [], [], ""
    for micro in range(MICRO_BATCHES):
        loss = engine(models.batch(0, micro, dist.get_rank()))
        curve.append(loss.item())
        if micro == infinite_at:
            loss = loss * float("inf")
        try:
            engine.backward(loss)
            engine.step()
        except (FloatingPointError, RuntimeError) as error:
            failure = f"{type(error).__name__}: {error}"
            break
        norms.append(engine.get_global_grad_norm())
    states = [state for state in engine.binding.optimizer.state.values() if "exp_avg" in state]
    return {
        "states": sorted({str(state["exp_avg"].dtype) for state in states}),
        "curve": curve,
        "norms": norms,
        "failure": failure,
        "steps": engine.global_steps,
        "samples": engine.global_samples,
        "skipped": engine.skipped_steps,
        "final scale": engine.loss_scale,
    }


def _saves_16bit(engine: Any) -> bool:
    with mock.patch("dsengine.loop.saving.save_weights"):
        return engine.save_16bit_model("nowhere")


def scales(settings: dict[str, Any], overflows: str) -> Any:
    """Return the loss scales; ``x`` is an overflow, ``.`` is not. Ends with the error, if any."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    path: list[Any] = [engine.loss_scale]
    for symbol in overflows:
        overflow = symbol == "x"
        message = _message(lambda flag=overflow: engine.loss_scaler.update(overflow=flag))
        path.append(message or engine.loss_scale)
    engine.destroy()
    return path


def files(settings: dict[str, Any], folder: str) -> list[str]:
    """Return the names of the files that a short run leaves in ``folder``."""
    probe(settings)
    dist.barrier()
    found = sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())
    return [name.partition("tfevents")[0] for name in found]


def mapped_bytes(settings: dict[str, Any]) -> int:
    """Return the bytes of shards that are in files."""
    from dsengine.sharding import fully_sharded

    moved: list[int] = []
    original = fully_sharded.move_shards_to_files

    def move_shards_to_files(*args: Any) -> int:
        moved.append(original(*args))
        return moved[-1]

    with mock.patch.object(fully_sharded, "move_shards_to_files", move_shards_to_files):
        engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    engine.destroy()
    return sum(moved)


def parameter_files(settings: dict[str, Any], folder: str) -> bool:
    """Whether the directory for mapped shards is in ``folder``."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    engine.destroy()
    return (Path(folder) / "dsengine" / "parameters").is_dir()


def pinned(settings: dict[str, Any], what: str) -> bool:
    """Whether host memory would be page-locked with an accelerator."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    with mock.patch.object(torch.cuda, "is_available", lambda: True):
        if what == "parameters":
            policy = offload_policy(of_type(engine.sharding, FullySharded).offload)
            answer = of_type(policy, CPUOffloadPolicy).pin_memory
        else:
            pins = of_type(engine.binding, OffloadedBinding).settings.pin_memory
            answer = pins and torch.cuda.is_available()
    engine.destroy()
    return bool(answer)


def input_dtype(settings: dict[str, Any]) -> str:
    """Return the dtype in which a model gets its fp32 inputs."""
    seen: list[str] = []
    model = Double()
    model.register_forward_pre_hook(lambda _, args: seen.append(str(args[0].dtype)))
    engine, *_ = dsengine.initialize(model=model, config=settings)
    _message(lambda: engine(torch.ones(2, 8)))
    engine.destroy()
    return seen[0]


def tags(settings: dict[str, Any], folder: str) -> str:
    """Return the error raised for different tags on ranks."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    message = _message(lambda: engine.save_checkpoint(folder, tag=f"tag{dist.get_rank()}"))
    engine.destroy()
    return message


def is_written_later(settings: dict[str, Any], folder: str) -> bool:
    """Return whether a save returned before its files were written, and could be loaded then."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    engine.save_checkpoint(folder, tag="first")
    is_pending = engine.checkpointer()._pending is not None
    engine.load_checkpoint(folder, tag="first")
    engine.destroy()
    return is_pending


def checkpointed(settings: dict[str, Any]) -> dict[str, int]:
    """Return how often activations were offloaded and the device was synchronized."""
    from dsengine.loop import activation_checkpointing as checkpointing

    counts = {"to host": 0, "waits": 0}

    def save_on_cpu(*_: Any, **__: Any) -> Any:
        counts["to host"] += 1
        return torch.autograd.graph.save_on_cpu()

    def synchronize(*_: Any) -> None:
        counts["waits"] += 1

    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    inputs = models.batch(0, 0, 0)
    with (
        mock.patch.object(checkpointing, "save_on_cpu", save_on_cpu),
        mock.patch.object(checkpointing.torch.cuda, "is_available", lambda: True),
        mock.patch.object(checkpointing.torch.cuda, "synchronize", synchronize),
    ):
        loss = engine.module(inputs)
    del loss
    engine.destroy()
    return counts


def synchronizations_for_rate(settings: dict[str, Any]) -> int:
    """Return how often an accelerator is synchronized while its rate is measured."""
    from dsengine.observation import timers

    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    throughput = engine.tput_timer
    throughput._device = torch.device("cuda")
    with mock.patch.object(timers.torch.cuda, "synchronize") as wait:
        for _ in range(4):
            throughput.boundary()
        throughput.avg_samples_per_sec()
    engine.destroy()
    return wait.call_count
