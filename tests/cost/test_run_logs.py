"""Logs of real runs from public issues: what is read, and how it compares with estimates.

``tests/oracle/logs``: each is shortened to the lines that were printed; the first names its source.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import command_line
import dsconfig
from dsconfig.commands.app import app
from dsconfig.cost.estimate import Option, Phase
from dsconfig.cost.log_comparison import compare
from dsconfig.facts import FactError, gather, run_log

LOGS = Path(__file__).parents[1] / "oracle" / "logs"
GIB = 2**30
PEAKS: dict[str, dict[str, float]] = {
    "stage3_offload": {"init": 0.41},
    "engine_sanity": {"init": 6.63},
    "trl_stage3": {"init": 0.0},
    "twin_flow": {"init": 0.64},
    "llama_factory": {"init": 7.22},
    "stage2_own_captions": {"forward": 5.31},
    "whole_model_first": {"init": 26.38},
    "engine_breakdown": {"backward": 0.08, "step": 0.02},
}
"""GiB by phase, as printed: the peak at "before backward" is that of forward."""


@pytest.mark.parametrize("name", PEAKS)
def test_log_peaks_are_assigned_to_phases(name: str) -> None:
    log = run_log.from_path(LOGS / f"{name}.log")
    for phase in ("init", "forward", "backward", "step"):
        peak, expected = log.peak(phase), PEAKS[name].get(phase)
        assert (peak is None) == (expected is None), phase
        assert expected is None or peak == int(expected * GIB)


def test_every_log_has_a_source_and_readings() -> None:
    logs = sorted(LOGS.glob("*.log"))
    assert len(logs) >= 10
    for path in logs:
        assert path.read_text().startswith("# source: https://github.com/"), path.name
        assert run_log.from_path(path).found


def test_throughput_is_the_average() -> None:
    log = run_log.from_path(LOGS / "engine_breakdown.log")
    assert log.samples_per_second == pytest.approx(3.0103234)
    old = run_log.from_path(LOGS / "config_and_rate.log")
    assert old.samples_per_second == pytest.approx(83.738388)
    assert old.peak_allocated == int(9.02 * GIB)


def test_dumped_config_is_read() -> None:
    config = run_log.from_path(LOGS / "config_and_rate.log").config
    assert config is not None and config["train_micro_batch_size_per_gpu"] == 128


def test_release_and_ranks_are_read() -> None:
    log = run_log.from_path(LOGS / "release_and_ranks.log")
    assert (log.release, log.world_size) == ("0.16.1", 2)


def test_both_out_of_memory_messages_are_read() -> None:
    old = run_log.from_path(LOGS / "old_lack_of_memory.log").out_of_memory
    new = run_log.from_path(LOGS / "lack_in_backward.log").out_of_memory
    assert old is not None and new is not None
    assert (old.tried, old.allocated) == (172 * 2**20, int(73.95 * GIB))
    assert (old.phase, new.phase) == (None, "backward")
    assert new.capacity == int(15.70 * GIB)


@pytest.mark.parametrize("text", ["", "root:x:0:0:root:/root:/bin/bash", "epoch 3 loss 0.2"])
def test_unrecognized_log_is_reported(text: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(text)
    with pytest.raises(FactError, match="contains no recognized lines"):
        run_log.from_path(path)


def option() -> Option:
    facts = gather(gpus=8, model="llama-2-7b", device="a100-80gb", micro_batch=1, seq_len=2048)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    }
    resolution = dsconfig.resolve(config, facts, runtime="deepspeed")
    return dsconfig.estimate(resolution, facts).options[0]


def printed(caption: str, allocated: float, peak: float, reserved: float) -> str:
    """As ``see_memory_usage`` prints them, in GiB."""
    return (
        f"[INFO] [utils.py:801:see_memory_usage] {caption}\n[INFO] [utils.py:802:see_memory_usage] "
        f"MA {allocated:.2f} GB         Max_MA {peak:.2f} GB         CA {reserved:.2f} GB\n"
    )


def test_overhead_and_step_are_fitted_if_states_agree() -> None:
    expected = option()
    rest = expected.device.end_bytes
    text = printed("After initializing ZeRO optimizer", *[rest[Phase.INIT] / GIB] * 3)
    text += printed("Engine before step", 20.0, 40.0, 46.0) + "RunningAvgSamplesPerSec=4.0\n"
    found = compare(run_log.from_text(text), expected, samples=8)
    fitted = {each.name: each.value for each in found.fitted}
    assert not found.is_foreign
    assert fitted["allocator overhead"] == pytest.approx(1.15)
    assert expected.step is not None
    assert fitted["step time"] == pytest.approx(2.0 / expected.step.seconds)


def test_nothing_is_fitted_to_a_different_run() -> None:
    text = printed("After initializing ZeRO optimizer", 60.0, 61.0, 62.0)
    found = compare(run_log.from_text(text + printed("Engine before step", 9, 9, 9)), option(), 8)
    assert found.is_foreign and not found.fitted
    assert [each.what for each in found.figures][:2] == ["peak in init", "after init"]


def test_failed_phase_is_compared_with_the_prediction() -> None:
    log = run_log.from_path(LOGS / "lack_in_backward.log")
    message = compare(log, option(), 8).failed
    assert "out of memory in backward" in message and "tried to allocate 0.22 GiB" in message


def test_another_gpu_than_that_of_the_run_is_named() -> None:
    printed_error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of {} GiB of which 1.10 GiB is free. Of the allocated memory 21.00 GiB is "
        "allocated by PyTorch, and 0.90 GiB is reserved by PyTorch but unallocated."
    )
    other = compare(run_log.from_text(printed_error.format(23.64)), option(), 8).failed
    assert other.endswith("The estimate is for A100-SXM4-80GB with 79.15 GiB.")
    assert (
        "The estimate is for"
        not in compare(run_log.from_text(printed_error.format(79.33)), option(), 8).failed
    )


def test_estimate_and_doctor_read_a_log(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},'
        ' "zero_optimization": {"stage": 3}}'
    )
    flags = "--model llama-2-7b --gpus 8 --device a100-80gb --seq-len 2048 --runtime deepspeed"
    log = str(LOGS / "lack_in_backward.log")
    words = ["estimate", str(config), *flags.split(), "--log", log, "--output-format", "json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert "out of memory in backward" in data["log"]["failed"]
    assert data["remedies"], "what would have fitted is named though the estimate fits"
    shown = CliRunner().invoke(app, ["doctor", "--log", log])
    assert "out of GPU memory in backward" in shown.output


@pytest.mark.parametrize(
    "line",
    [
        "MA 1.2.3 GB Max_MA 2.0 GB CA 3.0 GB Max_CA 4 GB",
        "MA " + "9" * 400 + " GB Max_MA 2.0 GB CA 3.0 GB Max_CA 4 GB",
        "SamplesPerSec=.",
        "...it/s",
        "CUDA out of memory. Tried to allocate 2.00.1 GiB",
        "dist_world_size = " + "9" * 5000,
        "json = " + '{"a":' * 100_000,
    ],
)
def test_misleading_line_is_ignored(line: str) -> None:
    log = run_log.from_text(f"{line}\nDeepSpeed info: version=0.16.4\n")
    assert log.release == "0.16.4"
    assert log.config is None and log.world_size is None and log.out_of_memory is None


PRINTED = """[INFO] [logging.py:128:log_dist] DeepSpeed info: version=0.16.4, git-hash=unknown
torch version .................... 2.5.1
[INFO] [config.py:733:__init__] Config mesh_device None world_size = 2
[INFO] [config.py:998:print_user_config]   json = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2}
}
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |
| N/A   34C    P0              63W / 400W |  41219MiB / 81920MiB |      0%      Default |
"""


def estimated(path: Path, *flags: str) -> dict[str, object]:
    command = ["estimate", "--log", str(path), "--model", "gpt2", *flags]
    done = CliRunner().invoke(app, [*command, "--seq-len", "512", "--output-format", "json"])
    assert done.exit_code == 0, done.output
    return {"stderr": " ".join(done.stderr.split()), **json.loads(done.stdout)}


def test_estimate_uses_facts_and_config_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(PRINTED)
    data = estimated(path)
    inputs = data["inputs"]
    assert isinstance(inputs, dict)
    assert (inputs["gpus"], inputs["device"]) == (2, "A100-SXM4-80GB")
    assert (data["release"], inputs["precision"], inputs["micro_batch"]) == ("0.16.4", "bf16", 2)
    printed = "2 GPUs, A100-SXM4-80GB with 79.1 GiB, torch 2.5.1, DeepSpeed 0.16.4, the config"
    assert str(data["stderr"]).startswith(f"from {path}: {printed}")


def test_flags_override_facts_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(PRINTED)
    flags = ("--gpus", "4", "--device", "h100", "--deepspeed-version", "0.19.8")
    data = estimated(path, *flags)
    inputs = data["inputs"]
    assert isinstance(inputs, dict)
    assert (inputs["gpus"], inputs["device"]) == (4, "H100-SXM5-80GB")
    assert data["release"] == "0.19.8"


def test_log_without_config_requires_file(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(PRINTED.replace("json =", ""))
    done = CliRunner().invoke(app, ["estimate", "--log", str(path), "--model", "gpt2"])
    assert "--log requires FILE" in str(done.exception)


TRAINER_LOG = """
***** Running training *****
  Instantaneous batch size per device = 4
  Gradient Accumulation steps = 2
MA 20.0 GB         Max_MA 25.0 GB         CA 26.0 GB         Max_CA 26 GB
"""
AUTO_BATCH = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 0},
}


def test_batch_of_the_log_precedes_that_of_the_arguments_beside_the_config(tmp_path: Path) -> None:
    path, config, arguments = (tmp_path / name for name in ("t.log", "ds.json", "args.json"))
    path.write_text(TRAINER_LOG)
    config.write_text(json.dumps(AUTO_BATCH))
    arguments.write_text('{"deepspeed": "ds.json", "per_device_train_batch_size": 3}')
    data = estimated(path, str(config), "--gpus", "2")
    inputs = data["inputs"]
    assert isinstance(inputs, dict) and inputs["micro_batch"] == 4
    assert "micro batch 4, gradient accumulation 2" in str(data["stderr"])
    assert f"using the arguments in {arguments}, which references" in str(data["stderr"])
    read = estimated(path, str(config), "--gpus", "2", "--training-args", str(arguments))
    inputs = read["inputs"]
    assert isinstance(inputs, dict) and inputs["micro_batch"] == 3
    assert "using the arguments" not in str(read["stderr"])


DUMP = """[INFO] [config.py:1001:print]   world_size ................... 4
[INFO] [config.py:1001:print]   zero_optimization_stage ...... 2
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity \
of 23.64 GiB
"""
OTHER_STAGE = "train.log shows ZeRO stage 2, but ds.json has stage 3: the run used another config"


@pytest.mark.parametrize(("stage", "is_other"), [(3, True), (2, False)])
@pytest.mark.parametrize("command", ["estimate", "doctor"])
def test_other_stage_of_the_log_is_reported(
    command: str, stage: int, is_other: bool, tmp_path: Path
) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    (tmp_path / "train.log").write_text(DUMP)
    model = ("--model", "llama-3-8b", "--seq-len", "512") if command == "estimate" else ()
    arguments = (command, "ds.json", "--log", "train.log", *model)
    done = command_line.run(*arguments, cwd=tmp_path)
    assert (OTHER_STAGE in done.stderr) == is_other
    assert done.returncode == 0, done.stderr


def test_stage_and_ranks_of_a_settings_list_are_read() -> None:
    log = run_log.from_text(DUMP)
    assert (log.stage, log.world_size) == (2, 4)
    dumped = run_log.from_text('json = {"zero_optimization": {"stage": 1}}\n' + DUMP)
    assert dumped.stage == 1
