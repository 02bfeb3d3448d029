"""Training loops on a simulated GPU."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dsengine
from dsconfig import tiles
from dsengine.checkpoints import checkpointer
from dsengine.torch_private.tensors import local_part, replaced
from streams.machine import Machine, host_model, simulated
from training import jobs, models

Settings = dict[str, Any]
BF16: Settings = {"bf16": {"enabled": True}}
FP16: Settings = {"fp16": {"enabled": True, "initial_scale_power": 4}}
PRECISIONS: dict[str, Settings] = {
    "fp32": {},
    "bf16": BF16,
    "fp16": FP16,
    "bf16 sums": {**BF16, "data_types": {"grad_accum_dtype": "bf16"}},
    "fp32 sent": {**BF16, "communication_data_type": "fp32"},
    "scaled": {**BF16, "gradient_predivide_factor": 2.0},
    "autocast": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
}
OPTIMIZER = {"device": "cpu", "pin_memory": True}
PARAMETERS = {"device": "cpu", "pin_memory": True}
OFFLOADS: dict[str, Settings] = {
    "no offload": {},
    "optimizer": {"offload_optimizer": OPTIMIZER},
    "optimizer unpinned": {"offload_optimizer": {"device": "cpu"}},
    "optimizer nvme": {"offload_optimizer": {"device": "nvme"}},
}
PARAMETER_OFFLOADS: dict[str, Settings] = {
    "parameters": {"offload_param": PARAMETERS},
    "half optimizer": {"offload_optimizer": {**OPTIMIZER, "ratio": 0.5}},
    "both": {"offload_optimizer": OPTIMIZER, "offload_param": PARAMETERS},
    "both nvme": {"offload_optimizer": {"device": "nvme"}, "offload_param": {"device": "nvme"}},
}
MESHES: dict[str, Settings] = {
    "one group": {},
    "mics": {"mics_shard_size": 2},
    "hpz": {"zero_hpz_partition_size": 2, "stage3_max_reuse_distance": 0},
}


class Scaled(nn.Module):
    """The tied model with parameters without a dimension, and one that is only read directly."""

    def __init__(self) -> None:
        super().__init__()
        self.model = models.tied()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.shift = nn.Linear(models.WIDTH, models.VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        shifted = F.linear(torch.ones(1, models.WIDTH), self.shift.weight.float()).square().mean()
        return self.model(ids) * self.scale + shifted


def case(stage: int, accumulation: int = 2, precision: str = "bf16", **zero: Any) -> Settings:
    """Return a config; ``zero`` extends its ZeRO block."""
    return jobs.config(
        stage,
        accumulation,
        **PRECISIONS[precision],
        zero={**zero, "sub_group_size": 1000},
        gradient_clipping=1.0,
    )


def every_case() -> Iterator[tuple[str, Settings]]:
    """Yield every stage, precision, accumulation, mesh and offload with a name."""
    for stage, (precision, _), accumulation in product((1, 2, 3), PRECISIONS.items(), (1, 2)):
        for mesh, own in MESHES.items():
            if mesh == "hpz" and stage < 3:
                continue
            offloads = OFFLOADS | (PARAMETER_OFFLOADS if stage == 3 else {})
            for offload, tier in offloads.items():
                if mesh != "one group" and "nvme" in offload:
                    continue
                name = f"{stage}, {precision}, {accumulation}, {mesh}, {offload}"
                yield name, case(stage, accumulation, precision, **own, **tier)


SIZES: Mapping[str, int] = {"PIECE_BYTES": 2048, "PIECES": 3, "PACKED_BELOW": 3000}
"""Small enough for the models here to fill and reuse buffers."""


@contextmanager
def sizes(changes: Mapping[str, int]) -> Iterator[None]:
    """Use small buffers inside, with ``changes``, and print no findings."""
    with ExitStack() as stack, warnings.catch_warnings():
        for name, value in {**SIZES, **changes}.items():
            stack.enter_context(replaced(tiles, name, value))
        warnings.simplefilter("ignore")
        yield


def with_files(config: Settings, folder: Path) -> Settings:
    """Return ``config`` with ``folder`` as the path of its tiers on NVMe."""
    zero = {
        key: {**value, "nvme_path": str(folder)}
        if isinstance(value, dict) and value.get("device") == "nvme"
        else value
        for key, value in config["zero_optimization"].items()
    }
    return {**config, "zero_optimization": zero}


Loop = Callable[[Any, Machine, Path], None]


def windows(engine: Any, machine: Machine, folder: Path, count: int = 3) -> None:
    """Train ``count`` windows; the waits recorded are those of the last one."""
    del folder
    for step in range(count):
        machine.waits.clear()
        for micro in range(engine.gradient_accumulation_steps()):
            engine.backward(engine(models.batch(step, micro, 0)))
            engine.step()


def evaluation(engine: Any, machine: Machine, folder: Path) -> None:
    """Evaluate, write to weights as scripts do, and train on."""
    batch = models.batch(9, 0, 0)
    with torch.no_grad():
        engine(batch)
    parameters = [p for p in engine.module.parameters() if p.requires_grad][:2]
    with dsengine.zero.GatheredParameters(parameters, modifier_rank=0), torch.no_grad():
        parameters[0].mul_(0.5)
    with torch.no_grad():
        engine(batch)
        for master in engine.sharding.masters.values():
            local_part(master).mul_(0.5)
    windows(engine, machine, folder, 1)


def coalesced(engine: Any, machine: Machine, folder: Path) -> None:
    """Reduce several backwards at once."""
    for _ in range(2):
        with engine.coalesce_grad_reduction():
            for micro in range(2):
                engine.backward(engine(models.batch(9, micro, 0)))
        engine.set_gradient_accumulation_boundary(True)
        engine.step()
        engine._accumulation.forced = None
    windows(engine, machine, folder, 1)


def direct(engine: Any, machine: Machine, folder: Path) -> None:
    """Call ``backward`` on the loss itself."""
    if engine.fp16_enabled():
        return
    for step in range(2):
        for micro in range(engine.gradient_accumulation_steps()):
            engine(models.batch(step, micro, 0)).backward()
            engine.step()
    windows(engine, machine, folder, 1)


def saved(engine: Any, machine: Machine, folder: Path) -> None:
    """Save while training continues."""
    engine.checkpointer().asynchronous = True

    def write(snapshot: Any, ranks: Any, root: Path, **_: Any) -> Path:
        del ranks
        machine.operations.record("write of a checkpoint", [*snapshot.tensors.values()], [])
        return root

    with replaced(checkpointer, "write", write):
        for step in range(2):
            engine.save_checkpoint(str(folder), tag=f"step{step}")
            windows(engine, machine, folder, 1)
        engine.checkpointer().wait()


LOOPS: dict[str, Loop] = {
    "windows": windows,
    "evaluation": evaluation,
    "coalesced": coalesced,
    "direct": direct,
    "saved": saved,
}


def run(
    config: Settings,
    folder: Path,
    loops: tuple[str, ...] = tuple(LOOPS),
    model: Callable[[], nn.Module] = models.tied,
    ranks: int = 4,
    changed_sizes: Mapping[str, int] = MappingProxyType({}),
) -> Machine:
    """Train on a simulated GPU and return it."""
    with sizes(changed_sizes), simulated(ranks) as machine:
        built = host_model(machine, model())
        engine, *_ = dsengine.initialize(model=built, config=with_files(config, folder))
        for loop in loops:
            LOOPS[loop](engine, machine, folder)
        engine.destroy()
    return machine
