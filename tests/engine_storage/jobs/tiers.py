"""Training with the optimizer on each tier; only the location of its states differs."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from dsengine.zero import GatheredParameters

import dsengine
from dsengine.tiers.nvme import FileStorage
from dsengine.tiers.storage import HostStorage
from dsengine.torch_private.units import sharded_parameters_of, units_of
from engine_storage.jobs.engine_run import config, train
from engine_storage.jobs.toy import ToyModel
from narrowing import not_none
from training import models
from training.jobs import config as tied_config
from training.jobs import window


def started(stage: int, offload: dict[str, Any] | None, **options: Any) -> Any:
    torch.manual_seed(5)
    zero = config(stage)["zero_optimization"] | options.pop("zero", {})
    if offload is not None:
        zero["offload_optimizer"] = offload
    settings = (
        config(stage, zero_force_ds_cpu_optimizer=False) | options | {"zero_optimization": zero}
    )
    return dsengine.initialize(model=ToyModel(), config=settings)[0]


def tiers(nvme: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return name -> (offload block, rest of the zero block)."""
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
    """Run four steps, save, two steps, change a parameter, two steps; destroy the engine."""
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
    """Return pairs of losses, expected and actual, by case; the last two follow a change."""
    out = Path(folder)
    result: dict[str, Any] = {"runs": {}}
    for stage, precision in ((2, {}), (3, {}), (3, {"bf16": {"enabled": True}})):
        saved = str(out / f"saved{stage}{len(precision)}")
        expected = run(started(stage, None, **precision), saved)
        cases = tiers(out / "nvme")
        if stage < 3:
            cases = {name: cases[name] for name in ("cpu", "cpu in tiles")}
        for name, (offload, zero) in cases.items():
            engine = started(stage, offload, zero=zero, **precision)
            expected_type = FileStorage if "nvme" in name else HostStorage
            assert type(engine.binding.storage) is expected_type
            if precision:
                dtypes = {p.dtype for p in engine.sharding.masters.values() if p.requires_grad}
                result["shards in bf16"] = dtypes == {torch.bfloat16}
            saved_here = str(out / f"saved {name} {stage}")
            got = run(engine, saved_here)
            case = f"{name}, stage {stage}{', bf16' if precision else ''}"
            result["runs"][case] = [expected, got]
            if name in ("cpu in part", "nvme with buffers") and stage == 3:
                # Resume without offload, and with it from a run without.
                result["runs"][f"{case} to device"] = [
                    expected[4:6],
                    resumed(stage, None, {}, saved_here, precision),
                ]
                result["runs"][f"device to {case}"] = [
                    expected[4:6],
                    resumed(stage, offload, zero, saved, precision),
                ]
    dist.barrier()  # another rank may still remove its files
    files = sorted(p.name for p in (out / "nvme").rglob("*"))
    result["left on disk"] = [f for f in files if f.startswith("tile")]
    return result


def parameter_offload(folder: str) -> dict[str, Any]:
    """Return losses with parameters on device, host and in files; and bytes mapped from files."""
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
    """Return the bytes of mappings of (deleted) shard files in this process."""
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
    """What is result to an optimizer that cannot be divided."""
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
    """Return combinations of offload options by name."""
    small, on_host = {"sub_group_size": 2000}, {"device": "cpu"}
    on_nvme = {"device": "nvme", "nvme_path": nvme}
    offload_param: dict[str, Any] = {"offload_param": {"device": "cpu"}}
    return {
        "none": {},
        "cpu": {"offload_optimizer": on_host},
        "cpu in tiles": {"offload_optimizer": on_host, **small},
        "cpu in part": {"offload_optimizer": {**on_host, "ratio": 0.5}, **small},
        "nvme": {"offload_optimizer": on_nvme, **small},
        "parameters": offload_param,
        "cpu, parameters": {"offload_optimizer": on_host, **offload_param},
        "nvme, parameters": {"offload_optimizer": on_nvme, **small, **offload_param},
    }


def curves(stage: int, precision: str, accumulation: int, folder: str) -> dict[str, Any]:
    """Return losses, norms and loss scales of five steps by offload options."""
    result: dict[str, Any] = {}
    for name, zero in combinations(folder).items():
        if stage < 3 and name not in ("none", "cpu", "cpu in tiles"):
            continue  # refused at this stage
        settings = tied_config(
            stage,
            accumulation,
            zero=zero,
            gradient_clipping=0.5,
            zero_force_ds_cpu_optimizer=False,
            **PRECISIONS[precision],
        )
        engine = dsengine.initialize(model=models.tied(), config=settings)[0]
        steps = []
        for step in range(5):
            loss = window(engine, step)
            steps.append((loss, engine.get_global_grad_norm(), engine.loss_scale))
        result[name] = {
            "steps": steps,
            "skipped": engine.skipped_steps,
            "on the device": [
                name
                for name, master in engine.sharding.masters.items()
                if engine._gradients.offloaded is not None and master.grad is not None
            ],
        }
        engine.destroy()
    return result


def left_in_backward() -> dict[str, Any]:
    """Count gradients that remain beside their sums after each backward of a step."""
    result: dict[str, Any] = {}
    for stage in (1, 2, 3):
        settings = tied_config(stage, 2, zero={"offload_optimizer": {"device": "cpu"}})
        engine = dsengine.initialize(model=models.tied(), config=settings)[0]
        counts = []
        for micro in range(2):
            engine.backward(engine(models.batch(0, micro, 0)))
            shards = sum(master.grad is not None for master in engine.sharding.masters.values())
            unreduced = sum(
                1
                for param in sharded_parameters_of(units_of(engine.module))
                for _ in param.unreduced()
            )
            offloaded = len(not_none(engine._gradients.offloaded))
            counts.append((shards + unreduced, offloaded))
            engine.step()
        offloaded = len(not_none(engine._gradients.offloaded))
        result[f"stage {stage}"] = [*counts, (0, offloaded)]
        engine.destroy()
    return result
