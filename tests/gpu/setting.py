"""Settings: what is measured on which device."""

from dataclasses import dataclass, field
from typing import Any

import torch

LARGE = {"dim": 1024, "layers": 24, "heads": 16, "vocabulary": 50304, "context": 1024}
"""A GPT with 0.35 billion parameters (including positions)."""
TINY = {"dim": 16, "layers": 2, "heads": 2, "vocabulary": 64, "context": 8}


@dataclass(frozen=True)
class Setting:
    """``workload``: arguments of Workload in benchmarks/engine_modes.py except the device."""

    device: str
    gpu: str
    gpus: int
    peak_tflops: float | None
    """Dense 16-bit peak of one GPU; None if unknown."""
    workload: dict[str, Any]
    stages: tuple[int, ...] = (0, 1, 2, 3)
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    steps: int = 20
    tile_elements: int = 20_000_000
    modes: tuple[str, ...] = ()
    compiled: tuple[bool, ...] = (False, True)
    tests: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """pytest arguments by name."""


MODES = (
    "ddp fused bf16",
    "fully_shard bf16",
    *(f"dsengine {stage} bf16" for stage in range(4)),
    *(f"deepspeed {stage} bf16" for stage in range(4)),
)
TESTS = {
    name: (f"tests/{name}.py",)
    for name in (
        "engine/test_stages",
        "engine/test_invariance",
        "engine/test_accumulation",
        "engine/test_collectives",
        "engine/test_offload_states",
        "engine/test_plans",
        "engine/test_keys",
        "engine_storage/test_export",
        "engine_storage/test_resume",
        "engine_storage/test_tiers",
    )
}


def on_gpu() -> Setting:
    """Return the full setting for the GPUs of this machine."""
    from dsconfig.facts.machine import named_device

    gpu = torch.cuda.get_device_name(0)
    return Setting(
        device="cuda",
        gpu=gpu,
        gpus=torch.cuda.device_count(),
        peak_tflops=named_device(gpu).tflops_16bit,
        workload={**LARGE, "micro_batch": 4, "device": "cuda"},
        modes=MODES,
        tests=TESTS,
    )


def on_host() -> Setting:
    """Return a tiny setting that runs in seconds without a GPU."""
    return Setting(
        device="cpu",
        gpu="none",
        gpus=1,
        peak_tflops=0.1,
        workload={**TINY, "micro_batch": 1, "device": "cpu"},
        stages=(0, 3),
        precisions=("bf16",),
        steps=2,
        tile_elements=2000,
        modes=("ddp fused bf16", "dsengine 3 bf16"),
        compiled=(False,),
        tests={"one": ("tests/engine/test_plans.py", "-k", "launcher_plan")},
    )
