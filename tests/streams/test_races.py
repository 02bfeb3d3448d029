"""The engine has no races on a simulated GPU."""

from pathlib import Path

import pytest

from streams import results
from streams.cases import (
    MESHES,
    OFFLOADS,
    OPTIMIZER,
    PARAMETER_OFFLOADS,
    Scaled,
    Settings,
    case,
    every_case,
    run,
)
from streams.machine import Machine
from training import models

pytestmark = pytest.mark.torch

USUAL: dict[str, Settings] = {
    "stage 1": case(1),
    "stage 1, fp16": case(1, 1, "fp16"),
    "stage 2": case(2),
    "stage 2, bf16 sums": case(2, precision="bf16 sums"),
    "stage 2, offload": case(2, offload_optimizer=OPTIMIZER),
    "stage 2, nvme": case(2, **OFFLOADS["optimizer nvme"]),
    "stage 3": case(3),
    "stage 3, fp32": case(3, 1, "fp32"),
    "stage 3, scaled": case(3, precision="scaled"),
    "stage 3, mics": case(3, **MESHES["mics"]),
    "stage 3, hpz": case(3, **MESHES["hpz"]),
    "stage 3, half offload": case(3, **PARAMETER_OFFLOADS["half optimizer"]),
    "stage 3, both": case(3, **PARAMETER_OFFLOADS["both"]),
    "stage 3, both on nvme": case(3, 1, **PARAMETER_OFFLOADS["both nvme"]),
}


def check(machine: Machine) -> None:
    assert not machine.races, "\n".join(map(str, machine.races))
    assert not machine.schedule.on_wrong_device


LONG = {
    "stage 1", "stage 2", "stage 2, nvme", "stage 2, offload", "stage 3", "stage 3, fp32",
    "stage 3, both",
}  # fmt: skip
"""Cases whose parts are also in others; `make test-all` runs them."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in USUAL]
)
def test_no_race(name: str, tmp_path: Path) -> None:
    check(run(USUAL[name], tmp_path))


@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.long), 3])
def test_no_race_with_scalars_and_direct_use(stage: int, tmp_path: Path) -> None:
    check(run(case(stage), tmp_path, model=Scaled))


@pytest.mark.parametrize("kind", ["Muon", "Adafactor"])
def test_no_race_with_optimizer_of_full_parameters(kind: str, tmp_path: Path) -> None:
    config = case(3) | {"optimizer": {"type": kind, "params": {"lr": 0.01}}}
    check(run(config, tmp_path, ("windows",), model=lambda: models.tied(blocks=2)))


@pytest.mark.deep
@pytest.mark.parametrize(("name", "config"), [pytest.param(n, c, id=n) for n, c in every_case()])
def test_no_race_in_any_case(name: str, config: Settings, tmp_path: Path) -> None:
    if name in results.passed():
        return  # an interrupted sweep goes on here
    check(run(config, tmp_path))
    results.record(name)
