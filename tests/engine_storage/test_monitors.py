"""Metrics are written to every enabled monitor, by rank 0 only."""

import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsconfig import block_values
from dsconfig.planner.capabilities import live_paths
from dsconfig.runtimes.effective import effective
from dsengine.observation.monitors import LEARNING_RATE, MissingPackageError, Monitors
from dsengine.observation.monitors import build_monitors as build_from_complete_blocks

EVENTS = [(LEARNING_RATE, 0.1, 8), ("Train/Samples/loss_scale", 4.0, 8), (LEARNING_RATE, 0.2, 16)]


def build_monitors(settings: dict[str, dict[str, Any]], **options: Any) -> Monitors:
    """Build the monitors of these blocks, with defaults for missing keys."""
    blocks = {name: block_values(name, block) for name, block in settings.items()}
    return build_from_complete_blocks(blocks, **options)


def test_csv_appends_to_one_file_per_tag(tmp_path: Path) -> None:
    block = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    for _ in range(2):
        build_monitors({"csv_monitor": block}).write_events(EVENTS)
    lines = (tmp_path / "job" / "Train_Samples_lr.csv").read_text().splitlines()
    assert lines == ["step,lr", "8,0.1", "16,0.2", "8,0.1", "16,0.2"]
    assert (tmp_path / "job" / "Train_Samples_loss_scale.csv").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_writes_scalars(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monitors = build_monitors({"tensorboard": {"output_path": str(tmp_path), "job_name": "job"}})
    monitors.write_events(EVENTS)
    monitors.close()
    events = accumulator.EventAccumulator(str(tmp_path / "job")).Reload()
    assert [(e.step, round(e.value, 5)) for e in events.Scalars(LEARNING_RATE)] == [
        (8, 0.1),
        (16, 0.2),
    ]


class Service:
    """Replaces a service's package and records calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def called(*args: Any, **named: Any) -> "Service":
            self.calls.append((name, args, named))
            return self

        return called


def test_wandb_logs_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=service.init, log=service.log))
    build_monitors({"wandb": {"project": "p", "team": "t"}}).write_events(EVENTS)
    assert service.calls == [
        ("init", (), {"project": "p", "group": None, "entity": "t"}),
        ("log", ({LEARNING_RATE: 0.1, "Train/Samples/loss_scale": 4.0},), {"step": 8}),
        ("log", ({LEARNING_RATE: 0.2},), {"step": 16}),
    ]


def test_comet_respects_log_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, "comet_ml", SimpleNamespace(start=service.start))
    monitors = build_monitors({"comet": {"samples_log_interval": 10, "experiment_name": "n"}})
    monitors.write_events([*EVENTS, (LEARNING_RATE, 0.3, 18)])
    metrics = [args for name, args, _ in service.calls if name == "log_metric"]
    assert metrics == [
        (LEARNING_RATE, 0.1),
        ("Train/Samples/loss_scale", 4.0),
        (LEARNING_RATE, 0.3),
    ]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingPackageError, match="pip install wandb"):
        build_monitors({"wandb": {}})


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    block = {"output_path": str(tmp_path)}
    assert not build_monitors({"csv_monitor": block}, rank=1).enabled
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_monitor_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown monitor: mlflow"):
        build_from_complete_blocks({"mlflow": {}})


MONITOR_KEYS: dict[str, tuple[str, dict[str, Any]]] = {
    "wandb": ("wandb", {"group": "g", "team": "t", "project": "p"}),
    "comet": (
        "comet_ml",
        {
            "samples_log_interval": 1,
            "project": "p",
            "workspace": "w",
            "api_key": "k",
            "experiment_name": "n",
            "experiment_key": "e",
            "online": False,
            "mode": "create",
        },
    ),
}


@pytest.mark.parametrize(
    ("block", "key", "value"),
    [
        (block, key, value)
        for block, (_, keys) in MONITOR_KEYS.items()
        for key, value in keys.items()
    ],
)
def test_every_key_has_an_effect(
    monkeypatch: pytest.MonkeyPatch, block: str, key: str, value: Any
) -> None:
    def calls(settings: dict[str, Any]) -> list[Any]:
        service = Service()
        package = SimpleNamespace(init=service.init, log=service.log, start=service.start)
        monkeypatch.setitem(sys.modules, MONITOR_KEYS[block][0], package)
        build_monitors({block: settings}).write_events([*EVENTS, (LEARNING_RATE, 0.3, 17)])
        return service.calls

    assert calls({key: value}) != calls({})


def test_every_honoured_key_has_a_case() -> None:
    for block, (_, keys) in MONITOR_KEYS.items():
        live = {path for path in live_paths() if path.startswith(f"{block}.")}
        assert live == {f"{block}.{key}" for key in [*keys, "enabled"]}


@pytest.mark.parametrize("block", MONITOR_KEYS)
def test_service_is_used_only_if_enabled(block: str) -> None:
    for on in (False, True):
        config = {"train_batch_size": 2, block: {"enabled": on, "project": "p"}}
        assert (block in effective(config).reporting.monitors) is on


@pytest.mark.live
def test_real_wandb_accepts_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    monitors = build_monitors({"wandb": {"project": "p", "group": "g"}})
    monitors.write_events(EVENTS)
    monitors.close()
    (run,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert LEARNING_RATE.encode() in run.read_bytes()


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_real_comet_accepts_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("comet_ml")
    monkeypatch.chdir(tmp_path)
    block = {"project": "p", "workspace": "w", "online": False, "samples_log_interval": 1}
    monitors = build_monitors({"comet": block})
    monitors.write_events(EVENTS)
    monitors.close()
    (archive,) = tmp_path.glob(".cometml-runs/*.zip")
    with zipfile.ZipFile(archive) as opened:
        messages = [json.loads(line) for line in opened.read("messages.json").splitlines()]
    metrics = [
        message["payload"]["metric"] for message in messages if message["type"] == "metric_msg"
    ]
    values = {(m["metricName"], m["metricValue"], m["step"]) for m in metrics}
    assert set(EVENTS) <= values
