"""Trains with the optimizer on each tier; nothing but the place of its states may differ."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from dsengine.zero import GatheredParameters
from engine_run import config, train
from toy import ToyModel, finish, start

import dsengine
from dsengine.tiers import HostBinding, NvmeBinding


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
    both = {"pipeline_read": True, "pipeline_write": True, "buffer_count": 4}
    return {
        "cpu": ({"device": "cpu"}, {}),
        "cpu in tiles": ({"device": "cpu"}, small),
        "cpu in part": ({"device": "cpu", "ratio": 0.5}, small),
        "nvme": (on_nvme, {}),
        "nvme in tiles": (on_nvme | {"buffer_count": 1}, small),
        "nvme with pipelines": (on_nvme | both, small),
    }


def run(engine: Any, saved: str) -> list[float]:
    """Four steps, a save, a change from outside, three steps more."""
    losses = train(engine, 4)
    engine.save_checkpoint(saved)
    losses += train(engine, 2)
    weight = engine.module.blocks[0].up.weight
    with GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        weight.mul_(0.5)
    return losses + train(engine, 2)


def resumed(
    stage: int,
    offload: dict[str, Any] | None,
    zero: dict[str, Any],
    saved: str,
    precision: dict[str, Any],
) -> Any:
    engine = started(stage, offload, zero=zero, **precision)
    engine.load_checkpoint(saved)
    return train(engine, 2)


def engine_with_mapped_shards(zero: dict[str, Any]) -> int:
    """How many bytes of the process are mappings of shard files (which have no name any more)."""
    engine = started(3, None, zero=zero)
    maps = Path("/proc/self/maps").read_text().splitlines()
    regions = [line.split()[0].split("-") for line in maps if "/parameters/rank" in line]
    del engine
    return sum(int(end, 16) - int(start, 16) for start, end in regions)


def main() -> None:
    options = start()
    out = Path(options["out"])
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
            engine.destroy()
            if name in ("cpu in part", "nvme with pipelines") and stage == 3:
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
    on_host: dict[str, Any] = {"offload_param": {"device": "cpu"}}
    nvme = {"device": "nvme", "nvme_path": str(out / "nvme")}
    mapped = {"offload_param": nvme | {"max_in_cpu": 300, "buffer_size": 10_000}}
    said["parameters"] = [
        train(engine, 4)
        for engine in (
            started(3, None),
            started(3, None, zero=on_host),
            started(3, {"device": "cpu"}, zero=on_host),
            started(3, None, zero=mapped),
            started(3, nvme, zero=mapped),
        )
    ]
    said["bytes in files"] = engine_with_mapped_shards(mapped)
    try:
        factored = {"type": "Adafactor", "params": {"lr": 0.02}}
        started(2, {"device": "cpu"}, optimizer=factored)
    except ValueError as error:
        said["refused"] = str(error)
    dist.barrier()
    finish(options, said)


main()
