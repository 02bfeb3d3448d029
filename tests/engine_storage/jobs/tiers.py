"""Trains with the optimizer on each tier; nothing but the place of its states may differ."""

from pathlib import Path
from typing import Any

import torch
from dsengine.zero import GatheredParameters

import dsengine
from dsengine.tiers import HostBinding, NvmeBinding
from dsengine.torch_private import sharded_parameters_of, units_of
from engine_storage.jobs.engine_run import config, train
from engine_storage.jobs.toy import ToyModel
from training import models
from training.jobs import config as tied_config
from training.jobs import window


def started(stage: int, offload: dict[str, Any] | None, **more: Any) -> Any:
    torch.manual_seed(5)
    zero = config(stage)["zero_optimization"] | more.pop("zero", {})
    if offload is not None:
        zero["offload_optimizer"] = offload
    whole = config(stage, zero_force_ds_cpu_optimizer=False) | more | {"zero_optimization": zero}
    return dsengine.initialize(model=ToyModel(), config=whole)[0]


def tiers(nvme: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Name -> (offload block, rest of the zero block)."""
    small = {"sub_group_size": 500}
    on_nvme = {"device": "nvme", "nvme_path": str(nvme)}
    return {
        "cpu": ({"device": "cpu"}, {}),
        "cpu in tiles": ({"device": "cpu"}, small),
        "cpu in part": ({"device": "cpu", "ratio": 0.5}, small),
        "nvme": (on_nvme, {}),
        "nvme in tiles": (on_nvme | {"buffer_count": 1}, small),
        "nvme with buffers": (on_nvme | {"buffer_count": 12}, small),
    }


def run(engine: Any, saved: str) -> list[float]:
    """Four steps, a save, two steps, a change from outside, two steps more; ends the engine."""
    losses = train(engine, 4)
    engine.save_checkpoint(saved)
    losses += train(engine, 2)
    weight = engine.module.blocks[0].up.weight
    with GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        weight.mul_(0.5)
    losses += train(engine, 2)
    engine.destroy()
    return losses


def resumed(
    stage: int,
    offload: dict[str, Any] | None,
    zero: dict[str, Any],
    saved: str,
    precision: dict[str, Any],
) -> Any:
    engine = started(stage, offload, zero=zero, **precision)
    engine.load_checkpoint(saved)
    losses = train(engine, 2)
    engine.destroy()
    return losses


def optimizer_on_every_tier(folder: str) -> dict[str, Any]:
    """Pairs of curves, expected and got, by case; the last two steps follow a change."""
    out = Path(folder)
    said: dict[str, Any] = {"runs": {}}
    for stage, precision in ((2, {}), (3, {}), (3, {"bf16": {"enabled": True}})):
        saved = str(out / f"saved{stage}{len(precision)}")
        expected = run(started(stage, None, **precision), saved)
        kept = tiers(out / "nvme")
        if stage < 3:
            kept = {name: kept[name] for name in ("cpu", "cpu in tiles")}
        for name, (offload, zero) in kept.items():
            engine = started(stage, offload, zero=zero, **precision)
            wanted = NvmeBinding if "nvme" in name else HostBinding
            assert type(engine._binding) is wanted
            if precision:
                dtypes = {p.dtype for p in engine.sharding.masters.values() if p.requires_grad}
                said["shards in bf16"] = dtypes == {torch.bfloat16}
            saved_here = str(out / f"saved {name} {stage}")
            got = run(engine, saved_here)
            case = f"{name}, stage {stage}{', bf16' if precision else ''}"
            said["runs"][case] = [expected, got]
            if name in ("cpu in part", "nvme with buffers") and stage == 3:
                # From a tier to no tier, and from no tier to a tier.
                said["runs"][f"{case} to device"] = [
                    expected[4:6],
                    resumed(stage, None, {}, saved_here, precision),
                ]
                said["runs"][f"device to {case}"] = [
                    expected[4:6],
                    resumed(stage, offload, zero, saved, precision),
                ]
    files = sorted(p.name for p in (out / "nvme").rglob("*"))
    said["left on disk"] = [f for f in files if f.startswith("tile")]
    return said


def parameters_below_the_device(folder: str) -> dict[str, Any]:
    """Curves with parameters on the device, on the host and in files; bytes mapped from files."""
    on_host: dict[str, Any] = {"offload_param": {"device": "cpu"}}
    nvme = {"device": "nvme", "nvme_path": str(Path(folder) / "nvme")}
    mapped = {"offload_param": nvme | {"max_in_cpu": 300, "buffer_size": 10_000}}
    curves = []
    for offload, zero in (
        (None, {}),
        (None, on_host),
        ({"device": "cpu"}, on_host),
        (None, mapped),
        (nvme, mapped),
    ):
        engine = started(3, offload, zero=zero)
        curves.append(train(engine, 4))
        engine.destroy()
    return {"parameters": curves, "bytes in files": _bytes_mapped(mapped)}


def _bytes_mapped(zero: dict[str, Any]) -> int:
    """How many bytes of the process are mappings of shard files (which have no name any more)."""
    before = _mapped_now()
    engine = started(3, None, zero=zero)
    bytes_mapped = _mapped_now() - before
    engine.destroy()
    return bytes_mapped


def _mapped_now() -> int:
    maps = Path("/proc/self/maps").read_text().splitlines()
    regions = [line.split()[0].split("-") for line in maps if "/parameters/rank" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in regions)


def refused() -> str:
    """What is said to an optimizer that cannot be divided."""
    factored = {"type": "Adafactor", "params": {"lr": 0.02}}
    try:
        started(2, {"device": "cpu"}, optimizer=factored)
    except ValueError as error:
        return str(error)
    return ""


PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 20, "hysteresis": 1}},
}


def combinations(nvme: str) -> dict[str, dict[str, Any]]:
    """What is below the device, by name."""
    small, on_host = {"sub_group_size": 2000}, {"device": "cpu"}
    on_nvme = {"device": "nvme", "nvme_path": nvme}
    below: dict[str, Any] = {"offload_param": {"device": "cpu"}}
    return {
        "none": {},
        "cpu": {"offload_optimizer": on_host},
        "cpu in tiles": {"offload_optimizer": on_host, **small},
        "cpu in part": {"offload_optimizer": {**on_host, "ratio": 0.5}, **small},
        "nvme": {"offload_optimizer": on_nvme, **small},
        "parameters": below,
        "cpu, parameters": {"offload_optimizer": on_host, **below},
        "nvme, parameters": {"offload_optimizer": on_nvme, **small, **below},
    }


def curves(stage: int, precision: str, accumulation: int, folder: str) -> dict[str, Any]:
    """By what is below the device: losses, norms and loss scales of five steps."""
    said: dict[str, Any] = {}
    for name, zero in combinations(folder).items():
        if stage < 3 and name not in ("none", "cpu", "cpu in tiles"):
            continue  # is refused there
        chosen = tied_config(
            stage,
            accumulation,
            zero=zero,
            gradient_clipping=0.5,
            zero_force_ds_cpu_optimizer=False,
            **PRECISIONS[precision],
        )
        engine = dsengine.initialize(model=models.tied(), config=chosen)[0]
        steps = []
        for step in range(5):
            loss = window(engine, step)
            steps.append((loss, engine.get_global_grad_norm(), engine.loss_scale))
        said[name] = {
            "steps": steps,
            "skipped": engine.skipped_steps,
            "on the device": [
                name
                for name, master in engine.sharding.masters.items()
                if engine.sharding.offloaded_gradients is not None and master.grad is not None
            ],
        }
        engine.destroy()
    return said


def left_in_backward() -> dict[str, Any]:
    """What is left of gradients beside their sums after each backward of a window."""
    said: dict[str, Any] = {}
    for stage in (1, 2, 3):
        chosen = tied_config(stage, 2, zero={"offload_optimizer": {"device": "cpu"}})
        engine = dsengine.initialize(model=models.tied(), config=chosen)[0]
        held = []
        for micro in range(2):
            engine.backward(engine(models.batch(0, micro, 0)))
            shards = sum(each.grad is not None for each in engine.sharding.masters.values())
            whole = sum(
                1
                for each in sharded_parameters_of(units_of(engine.module))
                for _ in each.unreduced()
            )
            held.append((shards + whole, len(engine.sharding.offloaded_gradients)))
            engine.step()
        said[f"stage {stage}"] = [*held, (0, len(engine.sharding.offloaded_gradients))]
        engine.destroy()
    return said
