"""The scripts in ``loops`` give the same fp32 losses with the real DeepSpeed.

DeepSpeed compiles its CPU optimizers on first use, which takes minutes.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from training.ranks import Ranks

pytestmark = [pytest.mark.engine, pytest.mark.live]
STAGES = [0, 1, 2, 3]
COMPILING = 900.0


class Both:
    """Runs a script with both packages."""

    def __init__(self, ours: Ranks, theirs: Ranks) -> None:
        self.ranks = {"dsengine": ours, "deepspeed": theirs}

    def __call__(self, script: str, *arguments: str) -> list[list[dict[str, Any]]]:
        """Return the results of dsengine and DeepSpeed, each by rank."""
        return [
            ranks.run(
                "training.loop_jobs:run_loop",
                seconds=COMPILING,
                script=script,
                package=package,
                arguments=list(arguments),
            )
            for package, ranks in self.ranks.items()
        ]


@pytest.fixture(scope="module")
def both(ours: Ranks, deepspeed: Ranks) -> Both:
    return Both(ours, deepspeed)


def agree(result: list[list[dict[str, Any]]], *names: str) -> None:
    for mine, theirs in zip(*result, strict=True):
        for name in names:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5), name


def config_file(folder: Path, stage: int, **more: Any) -> str:
    path = folder / "ds_config.json"
    zero = {"stage": stage, "memory_efficient_linear": False}
    settings = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": zero}
    path.write_text(json.dumps(settings | more))
    return str(path)


@pytest.mark.parametrize("stage", STAGES)
def test_images(both: Both, tmp_path: Path, stage: int) -> None:
    optimizer = {"type": "AdamW", "params": {"lr": 3e-3}}
    config = config_file(tmp_path, stage, optimizer=optimizer)
    agree(both("images", "--deepspeed_config", config), "losses", "accuracy", "rates")


@pytest.mark.parametrize("stage", STAGES)
def test_masked_lm(both: Both, tmp_path: Path, stage: int) -> None:
    agree(both("masked_lm", "--stage", str(stage)), "losses", "steps", "rate")


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_fine_tuning(both: Both, tmp_path: Path, stage: int, lora: int) -> None:
    arguments = ("--zero_stage", str(stage), "--lora_dim", str(lora))
    result = both("finetune", *arguments, "--output_dir", str(tmp_path))
    agree(result, "losses", "perplexities", "saved_perplexity")


@pytest.mark.parametrize("stage", [1, 2])
def test_fine_tuning_with_offloaded_optimizer(both: Both, stage: int) -> None:
    agree(both("finetune", "--zero_stage", str(stage), "--offload"), "losses", "perplexities")


def test_gan(both: Both, tmp_path: Path) -> None:
    """At stage 0, because DeepSpeed's ZeRO refuses a second backward before a step."""
    agree(both("gan", "--deepspeed_config", config_file(tmp_path, 0)), "losses", "steps")


def test_offload_states(both: Both) -> None:
    agree(both("offload_states"), "losses")
