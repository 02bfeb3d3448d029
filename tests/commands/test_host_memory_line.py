"""The required host memory is in the first lines, with the answer whether it was checked."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dsconfig.commands.app import app
from dsconfig.facts import machine
from dsconfig.report.sizes import GIB

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}
WORLD = ["--model", "llama-3.2-1b", "--gpus", "2", "--device", "rtx-4090", "--seq-len", "1024"]
"""One machine with the GPUs below."""


def run(command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [command, *arguments, *WORLD])


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "local_gpus", lambda: [("NVIDIA GeForce RTX 4090", 24 * GIB)] * 2)
    monkeypatch.setattr(machine, "host_memory_bytes", lambda: 256 * GIB)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "local_gpus", list)


def first_lines(output: str) -> str:
    return " ".join(output.split("\n\n")[1].split())


@pytest.mark.usefixtures("elsewhere")
def test_estimate_reports_unchecked_host_memory(config: str) -> None:
    shown = first_lines(run("estimate", config, "--runtime", "deepspeed").stdout)
    assert "Host memory: " in shown and "per node required" in shown
    assert "not checked (specify --host-memory)" in shown


@pytest.mark.usefixtures("elsewhere")
def test_estimate_reports_available_host_memory(config: str) -> None:
    flags = (config, "--runtime", "deepspeed", "--host-memory", "128GiB")
    assert "; 119 GiB available." in first_lines(run("estimate", *flags).stdout)
    data = json.loads(run("estimate", *flags, "--output-format", "json").stdout)
    assert data["host_available_bytes"] == pytest.approx(119 * GIB, rel=0.01)


@pytest.mark.usefixtures("here")
def test_host_memory_of_this_machine_is_used_for_its_own_device(config: str) -> None:
    done = run("estimate", config, "--runtime", "deepspeed")
    assert "available on this machine." in first_lines(done.stdout)
    assert "host memory: 256 GiB, detected" in done.stderr
    other = [flag if flag != "rtx-4090" else "a100-80gb" for flag in WORLD]
    done = CliRunner().invoke(app, ["estimate", config, "--runtime", "deepspeed", *other])
    assert "not checked" in first_lines(done.stdout)


@pytest.mark.usefixtures("here")
def test_tune_and_init_use_the_host_memory_of_this_machine() -> None:
    for command in ("tune", "init"):
        assert "host memory: 256 GiB, detected" in run(command).stderr


@pytest.mark.usefixtures("elsewhere")
def test_init_reports_required_host_memory_and_whether_it_was_checked() -> None:
    (line,) = (each for each in run("init").stderr.splitlines() if "Host memory" in each)
    assert line.endswith("required; not checked (specify --host-memory).")


@pytest.mark.usefixtures("elsewhere")
def test_init_reports_what_the_written_file_is_for(tmp_path: Path) -> None:
    done = run("init", "-o", str(tmp_path / "ds.json"))
    assert "1,024 tokens per sample" in done.stderr


@pytest.mark.usefixtures("elsewhere")
def test_nvidia_smi_line_never_exceeds_the_device_if_it_fits(config: str) -> None:
    flags = (config, "--runtime", "deepspeed", "--host-memory", "512GiB")
    device = json.loads(run("estimate", *flags, "--output-format", "json").stdout)["options"][0][
        "device"
    ]
    assert device["visible_bytes"] > device["needed_bytes"]
    between = (device["visible_bytes"] + device["needed_bytes"]) // 2
    done = run("estimate", *flags, "--device-memory", str(between))
    assert done.stdout.split("\n\n")[1].startswith("Fits")
    (line,) = (each for each in done.stdout.splitlines() if each.startswith("nvidia-smi"))
    shown = float(line.split(")")[1].split()[0])
    assert shown <= between / GIB + 0.005
    assert "cached, freed when memory runs out" in line


def test_host_column_is_the_required_memory_of_the_first_lines() -> None:
    output = run("estimate", "--model", "llama-3-8b").output
    stated = output.partition("Host memory: up to ")[2].partition(" GiB")[0]
    table = output.partition("per configuration (GiB)\n")[2].partition("\n\n")[0]
    head, *rows = table.splitlines()
    shown = [row[: head.index("host") + len("host")].split()[-1] for row in rows]
    assert len(shown) > 5 and max(shown, key=float) == stated
