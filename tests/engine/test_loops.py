"""Scripts written for DeepSpeed train unchanged except for their imports."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sweeps import sweep
from training.loop_jobs import LOOPS, changed_imports
from training.ranks import Ranks

pytestmark = pytest.mark.engine
STAGES = [0, 1, 2, 3]
JOB = "training.loop_jobs:run_loop"


def run_script(ranks: Ranks, script: str, *arguments: str) -> list[dict[str, Any]]:
    """Return the script's result on each rank."""
    return ranks.run(JOB, script=script, package="dsengine", arguments=list(arguments))


def config_file(folder: Path, stage: int, **more: Any) -> str:
    path = folder / f"stage{stage}.json"
    settings = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}}
    path.write_text(json.dumps(settings | more))
    return str(path)


def decreases(losses: list[float], share: float) -> bool:
    """Whether the mean of the last quarter is below ``share`` of the first's."""
    quarter = max(1, len(losses) // 4)
    return sum(losses[-quarter:]) < share * sum(losses[:quarter])


@pytest.mark.parametrize("path", sorted(LOOPS.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_only_lines_that_import_deepspeed_change(path: Path) -> None:
    before = path.read_text().splitlines()
    after = changed_imports(path.read_text()).splitlines()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert changed
    for line, other in changed:
        assert line.startswith(("import deepspeed", "from deepspeed"))
        assert "import dsengine" in other or other.startswith("from dsengine")


ADAMW = {"type": "AdamW", "params": {"lr": 1e-2}}


@sweep(1, stage=STAGES, precision=["fp32", "bf16", "fp16"])
def test_images_train_with_engine_loader(
    ranks: Ranks, tmp_path: Path, stage: int, precision: str
) -> None:
    block = {} if precision == "fp32" else {precision: {"enabled": True}}
    config = config_file(tmp_path, stage, optimizer=ADAMW, **block)
    for answer in run_script(ranks, "images", "--deepspeed", "--deepspeed_config", config):
        assert decreases(answer["losses"], 0.1)
        assert answer["accuracy"] > 0.9
        assert answer["rates"] == 1e-2


@pytest.mark.parametrize("stage", STAGES)
def test_masked_lm_resumes_from_checkpoint(ranks: Ranks, tmp_path: Path, stage: int) -> None:
    saved = ("--stage", str(stage), "--num_iterations", "24")
    uninterrupted = run_script(ranks, "masked_lm", *saved)
    folder = str(tmp_path)
    first = run_script(
        ranks,
        "masked_lm",
        *("--stage", str(stage), "--num_iterations", "16"),
        *("--checkpoint_dir", folder, "--checkpoint_every", "16"),
    )
    second = run_script(ranks, "masked_lm", *saved, "--load_checkpoint_dir", folder)
    for one, before, after in zip(uninterrupted, first, second, strict=True):
        assert one["losses"] == before["losses"] + after["losses"]
        assert (one["steps"], one["rate"]) == (after["steps"], after["rate"])
        assert decreases(one["losses"], 0.9)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_masked_lm_with_offloaded_optimizer(ranks: Ranks, stage: int) -> None:
    resident = run_script(ranks, "masked_lm", "--stage", str(stage))[0]
    offloaded = run_script(ranks, "masked_lm", "--stage", str(stage), "--offload")[0]
    assert offloaded["losses"] == pytest.approx(resident["losses"], rel=1e-6)


@sweep(1, stage=STAGES, lora=[0, 4])
def test_fine_tuning_saves_the_evaluated_model(
    ranks: Ranks, tmp_path: Path, stage: int, lora: int
) -> None:
    arguments = ("--zero_stage", str(stage), "--lora_dim", str(lora))
    for rank, answer in enumerate(
        run_script(ranks, "finetune", *arguments, "--output_dir", str(tmp_path))
    ):
        start, *_, end = answer["perplexities"]
        assert end < (0.9 if lora else 0.5) * start, rank
        assert answer["saved_perplexity"] == pytest.approx(end, rel=1e-6)
        assert math.isclose(answer["rates"][0], 0.0, abs_tol=1e-9)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fine_tuning_with_offload_gives_same_losses(ranks: Ranks, stage: int) -> None:
    resident = run_script(ranks, "finetune", "--zero_stage", str(stage))[0]
    offloaded = run_script(ranks, "finetune", "--zero_stage", str(stage), "--offload")[0]
    assert offloaded["losses"] == pytest.approx(resident["losses"], rel=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_gan_trains_with_two_engines(ranks: Ranks, tmp_path: Path, stage: int) -> None:
    plain = run_script(ranks, "gan", "--deepspeed_config", config_file(tmp_path, 0))[0]
    config = config_file(tmp_path, stage)
    answer = run_script(ranks, "gan", "--engines_forget", "--deepspeed_config", config)[0]
    assert answer["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert answer["steps"] == (12, 12)
    assert answer["losses"][-1] != answer["losses"][1]


@pytest.mark.parametrize("states", ["", "optim_states", "lp_params"])
def test_states_are_offloaded_and_reloaded_between_steps(ranks: Ranks, states: str) -> None:
    chosen = ["--included_state", states] if states else []
    for answer in run_script(ranks, "offload_states", *chosen, "--pin_memory", "--non_blocking"):
        assert decreases(answer["losses"], 0.95)
        assert min(answer["allocated"]) > 0
