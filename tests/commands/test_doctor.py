"""``dsconfig doctor FILE``: check a config for the installed releases."""

import json
from pathlib import Path

import pytest

import command_line
from dsconfig.commands import doctor
from dsconfig.project.errors import UsageError
from dsconfig.runtimes.transformers import Transformers
from dsconfig.schema import installed
from dsconfig.schema.version import Version

STAGE_2 = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 8,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(STAGE_2))
    return str(path)


def checks(file: str, monkeypatch: pytest.MonkeyPatch, release: str) -> list[doctor.Check]:
    monkeypatch.setattr(installed, "installed_or_newest", lambda: Version.parse(release))
    return list(doctor.config_checks(file))


def test_known_fault_of_installed_release_is_reported(file: str, monkeypatch) -> None:
    faulty = checks(file, monkeypatch, "0.18.0")
    assert any("DSC830" in each.text for each in faulty if each.state is doctor.State.BAD)
    assert not any("DSC830" in each.text for each in checks(file, monkeypatch, "0.19.8"))


def test_other_transformers_release_prints_note(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "4.51.3")
    (check,) = doctor._release_check(Transformers())
    assert "4.51.3 is installed" in check.text and "5.23" in check.text
    monkeypatch.setattr(doctor, "version", lambda name: "5.23.0")
    assert not list(doctor._release_check(Transformers()))


def test_missing_file_is_usage_error() -> None:
    with pytest.raises(UsageError, match="file not found"):
        list(doctor.config_checks("nowhere.json"))


def test_inferred_program_reports_nothing_about_the_script(tmp_path: Path) -> None:
    """As in ``validate``: it is unknown whether the script passes an optimizer."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 1}}))
    assert not [found for found in doctor.config_checks(str(path)) if "DSC613" in found.text]


OUT_OF_MEMORY = """\
Traceback (most recent call last):
  File "/w/site-packages/transformers/trainer.py", line 3700, in training_step
    self.accelerator.backward(loss)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 11.59 GiB. GPU 0 has a total \
capacity of 79.15 GiB of which 3.20 GiB is free. Process 1 has 75.93 GiB memory in use. Of the \
allocated memory 70.10 GiB is allocated by PyTorch, and 4.80 GiB is reserved by PyTorch but \
unallocated.
"""
LAUNCH = (
    "torchrun --nproc_per_node 4 train.py --model_name_or_path meta-llama/Meta-Llama-3-8B --bf16 "
    "--max_length 8192 --per_device_train_batch_size 4 --learning_rate 1e-5 --output_dir out "
    "--deepspeed ds.json\n"
)
AUTO = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    (tmp_path / "train.log").write_text(OUT_OF_MEMORY)
    (tmp_path / "ds.json").write_text(json.dumps(AUTO | {"bf16": {"enabled": "auto"}}))
    (tmp_path / "run.sh").write_text(LAUNCH)
    return tmp_path


def test_estimate_explains_an_out_of_memory_error(failed: Path) -> None:
    form = ("--output-format", "json")
    data = json.loads(command_line.run("doctor", "train.log", "run.sh", *form, cwd=failed).stdout)
    estimate = data["estimate"]
    assert estimate["verdict"].startswith("Does not fit") and "in backward" in estimate["verdict"]
    assert estimate["largest"][0]["name"] == "activations"
    assert estimate["remedies"][0]["fits"]
    named = command_line.run("estimate", "run.sh", "--log", "train.log", *form, cwd=failed)
    assert json.loads(named.stdout)["remedies"][0] == estimate["remedies"][0]


@pytest.mark.parametrize("form", [(), ("--output-format", "json")])
def test_changes_are_redacted(failed: Path, form: tuple[str, ...]) -> None:
    offload = {"device": "none", "nvme_path": "/home/alice/disk"}
    zero = {"zero_optimization": {"stage": 2, "offload_optimizer": offload}}
    (failed / "ds.json").write_text(json.dumps(AUTO | zero | {"bf16": {"enabled": "auto"}}))
    launch = LAUNCH.replace("8192", "512 --gradient_checkpointing True").replace("size 4", "size 1")
    (failed / "run.sh").write_text(launch.replace("node 4", "node 2"))
    files = (str(failed / "train.log"), str(failed / "run.sh"))
    assert "/home/alice" in command_line.run("doctor", *files, *form).stdout
    done = command_line.run("doctor", *files, "--redact", *form)
    assert "PATH/disk" in done.stdout
    assert "alice" not in done.stdout + done.stderr and str(failed) not in done.stdout + done.stderr


def test_config_beside_a_log_is_used(failed: Path) -> None:
    done = command_line.run("doctor", "train.log", cwd=failed)
    assert "config: ds.json, the only one beside the log" in done.stderr
    assert "the model is unknown: specify --model" in " ".join(done.stdout.split())
    (failed / "other.json").write_text(json.dumps(AUTO))
    assert "only one" not in command_line.run("doctor", "train.log", cwd=failed).stderr
