"""How often the host waits for the device in one window, and at which lines.

Each wait drains the queue of launched work. The budget is in docs/internals/streams.md.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streams.cases import OFFLOADS, PARAMETER_OFFLOADS, Settings, case, run

pytestmark = pytest.mark.torch

NORM = "read of a value at optimizers/gradients.py (_norm)"
OFFLOADED_NORM = "blocking copy_ at optimizers/gradients.py (global_norm)"
GRADIENTS = "wait_for_device at tiers/binding.py (gradients)"
SHARD_TO_HOST = "event.synchronize at _fully_shard/_fsdp_param_group.py (finalize_backward)"


def waits(config: Settings, folder: Path) -> dict[str, int]:
    """Return how often each line waits in a window, without its number."""
    machine = run(config, folder, ("windows",))
    places = [place.partition(":") for place in machine.waits]
    return dict(Counter(f"{file} {rest.partition(' ')[2]}" for file, _, rest in places))


def unclipped(*args: Any, **zero: Any) -> Settings:
    return {**case(*args, **zero), "gradient_clipping": 0.0}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_step_reads_one_value(stage: int, precision: str, tmp_path: Path) -> None:
    """The norm: for clipping, for the scale in fp16, and to refuse a non-finite update."""
    assert waits(case(stage, 1, precision), tmp_path) == {NORM: 1}


@pytest.mark.parametrize("stage", [1, 2])
def test_step_without_norm_never_waits(stage: int, tmp_path: Path) -> None:
    assert waits(unclipped(stage, 2, "fp32", compute_grad_norm=False), tmp_path) == {}


@pytest.mark.parametrize("stage", [0, 2])
def test_accumulation_does_not_wait(stage: int, tmp_path: Path) -> None:
    assert waits(case(stage, 3), tmp_path) == {NORM: 1}


OFFLOADED = {
    "optimizer": ({GRADIENTS: 1, OFFLOADED_NORM: 1, NORM: 1}, OFFLOADS["optimizer"]),
    "optimizer nvme": ({GRADIENTS: 1, OFFLOADED_NORM: 1, NORM: 1}, OFFLOADS["optimizer nvme"]),
    "parameters": (
        {SHARD_TO_HOST: 24, OFFLOADED_NORM: 1, NORM: 1},
        PARAMETER_OFFLOADS["parameters"],
    ),
    "both": (
        {SHARD_TO_HOST: 24, GRADIENTS: 1, OFFLOADED_NORM: 1, NORM: 1},
        PARAMETER_OFFLOADS["both"],
    ),
}


@pytest.mark.parametrize("name", OFFLOADED)
def test_offload_waits_as_listed(name: str, tmp_path: Path) -> None:
    expected, tier = OFFLOADED[name]
    assert waits(case(3, 1, **tier), tmp_path) == expected
