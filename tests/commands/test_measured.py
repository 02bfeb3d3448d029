"""``doctor --measure`` and ``estimate --measured-here``: what this machine really moves."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dsconfig
from dsconfig.commands import options
from dsconfig.commands.app import app
from dsconfig.commands.errors import UsageError
from dsconfig.cost.hardware import rates
from dsengine.tiers import speeds

MEASURED: dict[str, Any] = {
    "copy_gb_per_second": 40.0,
    "nvme_read_gb_per_second": 2.0,
    "nvme_write_gb_per_second": 1.0,
    "card_gb_per_second": 10.0,
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "MOVED_BYTES", 2**20)


def test_what_is_measured_is_there_and_nothing_is_left(quick: None, tmp_path: Path) -> None:
    host = speeds.measure_rates(dsconfig.HostFacts(nvme_path=str(tmp_path), cores=3))
    assert host.cores == 3
    for rate in (host.copy_gb_per_second, host.nvme_read_gb_per_second):
        assert rate is not None and rate > 0
    assert host.nvme_write_gb_per_second
    assert list(tmp_path.iterdir()) == []
    assert speeds.measure_rates(dsconfig.HostFacts()).nvme_read_gb_per_second is None


def test_doctor_measures_when_it_is_asked_to(quick: None, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["doctor", "--nvme", str(tmp_path)]).stdout
    assert "memory speed" in told
    assert f"{tmp_path} reads" in told.replace("\n", " ").replace("  ", "")
    assert "memory speed" not in CliRunner().invoke(app, ["doctor"]).stdout


def test_a_disk_that_is_not_there_is_an_error_of_usage(quick: None) -> None:
    with pytest.raises(UsageError, match="--nvme: /nowhere/at/all: No such file or directory"):
        options.measured(dsconfig.HostFacts(nvme_path="/nowhere/at/all"))


def test_a_directory_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="--nvme is empty"):
        options.measured(dsconfig.HostFacts(nvme_path=""))


def test_rates_are_those_that_were_measured() -> None:
    facts = dsconfig.Facts(world_size=2, nodes=1, host=dsconfig.HostFacts(**MEASURED))
    found, usual = rates(facts), rates(replace(facts, host=None))
    assert (found.nvme_read, found.nvme_write, found.pcie) == (1e9, 0.5e9, 10e9)
    assert rates(facts, "slow").host_adam < found.host_adam < rates(facts, "fast").host_adam
    assert rates(facts, "fast").host_adam == pytest.approx(40e9 / 34 / 2)
    assert found.flops == usual.flops


def offload_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, factor: float) -> float:
    """Of the step that is estimated where disk, memory and PCIe are so much faster."""
    file = tmp_path / "ds.json"
    offload = {"device": "nvme", "nvme_path": str(tmp_path)}
    block: dict[str, Any] = {"stage": 3, "offload_optimizer": offload}
    file.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": block}))
    faster = {name: factor * rate for name, rate in MEASURED.items()}
    monkeypatch.setattr(speeds, "measured", lambda host: replace(host, **faster))
    command = ["estimate", str(file), "--model", "gpt2", "--gpus", "8", "--device", "a100-80gb"]
    flags = ["--seq-len", "128", "--measured-here", "--output-format", "json"]
    done = CliRunner().invoke(app, [*command, *flags])
    assert done.exit_code == 0, done.output
    assert "a copy reads and writes" in done.stderr
    return json.loads(done.stdout)["options"][0]["step"]["offload_seconds"]


def test_the_estimate_uses_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here, twice = (offload_seconds(monkeypatch, tmp_path, factor) for factor in (1.0, 2.0))
    assert twice == pytest.approx(here / 2, rel=0.02)
