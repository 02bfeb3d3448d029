"""transformers' Trainer with dsengine in the place of DeepSpeed, held to the real one."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from frameworks.running import tiny_model, told

pytestmark = [pytest.mark.live, pytest.mark.engine]
STAGES = [0, 1, 2, 3]
AUTO = "auto"
COMMON = {
    "gradient_accumulation_steps": AUTO,
    "gradient_clipping": AUTO,
    "train_batch_size": AUTO,
    "train_micro_batch_size_per_gpu": AUTO,
    "steps_per_print": 2000,
}
OPTIMIZER = {
    "type": "AdamW",
    "params": {"lr": AUTO, "betas": AUTO, "eps": AUTO, "weight_decay": AUTO, "torch_adam": True},
}
SCHEDULER = {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": AUTO, "warmup_max_lr": AUTO, "warmup_num_steps": AUTO},
}
IN_CONFIG = {"optimizer": OPTIMIZER, "scheduler": SCHEDULER}
ARGUMENTS = [
    "--per_device_train_batch_size=2",
    "--gradient_accumulation_steps=2",
    "--max_steps=6",
    "--save_steps=3",
    "--eval_strategy=steps",
    "--eval_steps=3",
    "--logging_steps=1",
    "--learning_rate=1e-3",
    "--warmup_steps=2",
    "--report_to=none",
    "--disable_tqdm=true",
    "--load_best_model_at_end=true",
    "--metric_for_best_model=eval_loss",
]


class Trained:
    """Runs of the same script by both packages, from the same weights."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = tiny_model(folder)

    def __call__(self, package: str, stage: int, config: dict[str, Any], *more: str) -> Any:
        zero = {
            "stage": stage,
            "reduce_bucket_size": AUTO,
            "stage3_prefetch_bucket_size": AUTO,
            "stage3_param_persistence_threshold": AUTO,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
        file = self.folder / "ds.json"
        file.write_text(json.dumps(COMMON | {"zero_optimization": zero} | config))
        out = ("--output_dir", str(self.out(package)), "--deepspeed", str(file))
        arguments = (str(self.model), *out, *ARGUMENTS, *more)
        return told(package, "trainer", self.folder, *arguments)

    def out(self, package: str) -> Path:
        return self.folder / f"out-{package}"


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path)


CLOSE = ("losses", "norms", "rates", "eval", "evaluated", "predicted", "weights")
EQUAL = ("class", "best", "tokens", "saved")


def agree(mine: Any, theirs: Any, *leave: str) -> None:
    for name in (each for each in CLOSE if each not in leave):
        assert mine[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-7), name
    for name in EQUAL:
        assert mine[name] == theirs[name], name


@pytest.mark.parametrize("config", [IN_CONFIG, {}], ids=["in the config", "by the script"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_training_is_that_of_deepspeed(trained: Trained, stage: int, config: Any) -> None:
    agree(trained("dsengine", stage, config), trained("deepspeed", stage, config))


def test_stage_0_trains_as_stage_2_does(trained: Trained) -> None:
    """DeepSpeed has no gradient norm there, for which this script asks."""
    agree(trained("dsengine", 0, IN_CONFIG), trained("dsengine", 2, IN_CONFIG))


@pytest.mark.parametrize("saved_by", ["dsengine", "deepspeed"])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_run_goes_on_from_what_either_has_saved(
    trained: Trained, stage: int, saved_by: str
) -> None:
    whole = trained(saved_by, stage, IN_CONFIG)
    resume = f"--resume_from_checkpoint={trained.out(saved_by) / 'checkpoint-3'}"
    agree(trained("dsengine", stage, IN_CONFIG, resume), whole)


def test_recomputed_activations_change_nothing(trained: Trained) -> None:
    plain = trained("dsengine", 3, IN_CONFIG)
    agree(trained("dsengine", 3, IN_CONFIG, "--gradient_checkpointing=true"), plain)


def test_what_tune_advises_trains_to_its_end(tmp_path: Path) -> None:
    """With the real DeepSpeed: the file that it writes, and the arguments that it names beside."""
    model, file = tiny_model(tmp_path), tmp_path / "ds.json"
    about = ["--model", str(model / "config.json"), "--gpus", "1", "--device", "h100"]
    batch = ["--seq-len", "12", "--micro-batch", "2", "--global-batch", "4"]
    run = ["--runtime", "transformers", "--precision", "bf16", "-o", str(file)]
    command = [sys.executable, "-m", "dsconfig", "tune", *about, *batch, *run]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    words = " ".join((said.stdout + said.stderr).split())
    advice = re.search(r"\(-o\), set (.*?) in TrainingArguments", words)
    assert advice is not None, words
    named = [f"--{each}" for each in advice[1].split(", ")]
    assert {each.partition("=")[0] for each in named} >= {"--learning_rate", "--bf16"}
    usual = [each for each in ARGUMENTS if not each.startswith("--learning_rate")]
    out = ("--output_dir", str(tmp_path / "out"), "--deepspeed", str(file), "--use_cpu=true")
    told_by = told("deepspeed", "trainer", tmp_path, str(model), *out, *usual, *named)
    assert len(told_by["losses"]) == 6 and max(told_by["rates"]) == pytest.approx(1e-5)
    assert "model.safetensors" in told_by["saved"]
