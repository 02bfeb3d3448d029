"""``doctor --measure`` and ``estimate --measured-here``: measured bandwidths."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dsconfig
from dsconfig.commands import options
from dsconfig.commands.app import app
from dsconfig.cost.hardware import rates
from dsconfig.project.errors import UsageError
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


def test_measuring_leaves_no_files(quick: None, tmp_path: Path) -> None:
    host = speeds.measure_rates(dsconfig.HostFacts(nvme_path=str(tmp_path), cores=3))
    assert host.cores == 3
    for rate in (host.copy_gb_per_second, host.nvme_read_gb_per_second):
        assert rate is not None and rate > 0
    assert host.nvme_write_gb_per_second
    assert list(tmp_path.iterdir()) == []
    assert speeds.measure_rates(dsconfig.HostFacts()).nvme_read_gb_per_second is None


def test_doctor_measures_only_on_request(quick: None, tmp_path: Path) -> None:
    output = CliRunner().invoke(app, ["doctor", "--nvme", str(tmp_path)]).stdout
    assert "copy bandwidth" in output
    assert f"{tmp_path}: read" in output.replace("\n", " ").replace("  ", "")
    assert "copy bandwidth" not in CliRunner().invoke(app, ["doctor"]).stdout


def test_missing_nvme_directory_is_usage_error(quick: None) -> None:
    with pytest.raises(UsageError, match="--nvme: /nowhere/at/all: No such file or directory"):
        options.measured(dsconfig.HostFacts(nvme_path="/nowhere/at/all"))


def test_empty_nvme_directory_is_usage_error() -> None:
    with pytest.raises(UsageError, match="--nvme is empty"):
        options.measured(dsconfig.HostFacts(nvme_path=""))


def test_measured_rates_are_used() -> None:
    facts = dsconfig.Facts(world_size=2, nodes=1, host=dsconfig.HostFacts(**MEASURED))
    found, usual = rates(facts), rates(replace(facts, host=None))
    assert (found.nvme_read, found.nvme_write, found.pcie) == (1e9, 0.5e9, 10e9)
    assert rates(facts, "slow").host_adam < found.host_adam < rates(facts, "fast").host_adam
    assert rates(facts, "fast").host_adam == pytest.approx(40e9 / 34 / 2)
    assert found.flops == usual.flops


def offload_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, factor: float) -> float:
    """Return the offload time of a step with bandwidths multiplied by ``factor``."""
    file = tmp_path / "ds.json"
    offload = {"device": "nvme", "nvme_path": str(tmp_path)}
    block: dict[str, Any] = {"stage": 3, "offload_optimizer": offload}
    file.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": block}))
    faster = {name: factor * rate for name, rate in MEASURED.items()}
    monkeypatch.setattr(speeds, "measure_rates", lambda host: replace(host, **faster))
    command = ["estimate", str(file), "--model", "gpt2", "--gpus", "8", "--device", "a100-80gb"]
    flags = ["--seq-len", "128", "--measured-here", "--output-format", "json"]
    done = CliRunner().invoke(app, [*command, *flags])
    assert done.exit_code == 0, done.output
    assert "copy bandwidth" in done.stderr
    return json.loads(done.stdout)["options"][0]["step"]["offload_seconds"]


def test_offload_time_scales_with_measured_rates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, twice = (offload_seconds(monkeypatch, tmp_path, factor) for factor in (1.0, 2.0))
    assert twice == pytest.approx(here / 2, rel=0.02)
