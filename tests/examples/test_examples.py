"""Run the examples as documented, with real processes."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from suite.limits import scaled

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TINY = {
    "architecture": "gpt",
    "hidden_size": 32,
    "layers": 2,
    "heads": 2,
    "vocab_size": 256,
    "max_positions": 32,
    "tie_word_embeddings": False,
}


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=scaled(200),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def losses(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"loss (\d+\.\d+)", output)]


def test_the_library_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    plan = runpy.run_path(str(EXAMPLES / "library.py"))["main"]()
    assert plan.batch.global_batch == 64
    assert "valid: True" in capsys.readouterr().out


@pytest.mark.engine
@pytest.mark.long
def test_a_deepspeed_script_runs_with_one_changed_import(tmp_path: Path) -> None:
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    script = (
        EXAMPLES / "classifier.py",
        "--deepspeed",
        "--deepspeed_config",
        EXAMPLES / "classifier_bf16.json",
        "--checkpoints",
        tmp_path,
    )
    first = run(*launch, *script)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "latest").read_text() == "global_step192"
    second = run(*launch, *script)
    assert second.returncode == 0, second.stderr
    assert losses(second.stdout)[-1] < losses(first.stdout)[0] / 2
    assert (tmp_path / "latest").read_text() == "global_step384"


@pytest.mark.engine
@pytest.mark.long
def test_the_gpt_trains_resumes_and_exports_under_dsconfig_run(tmp_path: Path) -> None:
    model = tmp_path / "tiny.json"
    model.write_text(json.dumps(TINY))
    command = (
        *("-m", "dsconfig", "run", EXAMPLES / "gpt_zero3.json"),
        *("--gpus", 2, "--device", "cpu", "--model", model),
        *("--micro-batch", 4, "--global-batch", 16),
        *("--", EXAMPLES / "train_gpt.py", "--model", model, "--folder", tmp_path / "run"),
    )
    first = run(*command, "--steps", 12)
    assert first.returncode == 0, first.stderr
    weights = tmp_path / "weights"
    second = run(*command, "--steps", 12, "--resume", "--export", weights)
    assert second.returncode == 0, second.stderr
    assert "step 24" in second.stdout
    assert losses(second.stdout)[-1] < losses(first.stdout)[0] - 0.5
    exported = load_file(weights / "model.safetensors")
    assert exported["blocks.1.feed_forward_out.bias"].shape == (32,)


def test_training_refuses_a_config_with_errors_before_any_process_starts(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimisation": {"stage": 3}}')
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('started')")
    result = run("-m", "dsconfig", "run", config, "--gpus", 2, "--device", "cpu", "--", script)
    assert result.returncode == 1
    assert "zero_optimization" in result.stdout
    assert "started" not in result.stdout + result.stderr


def test_a_missing_script_is_a_usage_error(tmp_path: Path) -> None:
    config = EXAMPLES / "classifier_bf16.json"
    result = run("-m", "dsconfig", "run", config, "--device", "cpu", "--", tmp_path / "none.py")
    assert result.returncode == 2
    assert "file not found" in result.stderr
