"""``dsconfig init``: a starter that validates clean, for each program."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig.facts import gather

from .conftest import Run

LLAMA = ("--model", "llama-2-7b", "--gpus", 8, "--device", "a100-80gb")
FACTS = gather(model="llama-2-7b", world_size=8, device="a100-80gb", sequence_length=2048)


def started(run: Run, *arguments: object) -> tuple[str, dict[str, Any]]:
    code, out, err = run("init", *arguments)
    assert code == 0, err
    return out, dsconfig.read(out).value


@pytest.mark.parametrize("runtime", ["deepspeed", "dsengine", "transformers", "accelerate"])
@pytest.mark.parametrize("arguments", [(), LLAMA], ids=["nothing known", "llama"])
def test_it_validates_clean(run: Run, runtime: str, arguments: tuple[object, ...]) -> None:
    text, _ = started(run, *arguments, "--runtime", runtime)
    report = dsconfig.validate(
        text, FACTS if arguments else None, runtime=runtime, version="0.19.8"
    )
    assert (report.errors, report.warnings) == ((), ())


def test_each_choice_has_its_reason(run: Run) -> None:
    text, config = started(run, *LLAMA)
    assert "// llama-2-7b on 8 x A100-SXM4-80GB, 2048 tokens per sample." in text
    assert "// A100-SXM4-80GB computes in bf16, which needs no loss scale" in text
    assert config["bf16"] == {"enabled": True}
    assert config["train_micro_batch_size_per_gpu"] >= 1


def test_nothing_stands_in_it_without_effect(run: Run) -> None:
    _, config = started(run, *LLAMA)
    assert "fp16" not in config
    assert config["zero_optimization"]["stage"] < 3
    assert not [name for name in config["zero_optimization"] if name.startswith("stage3_")]


def test_without_a_global_batch_it_runs_at_any_world_size(run: Run) -> None:
    assert "train_batch_size" not in started(run, *LLAMA)[1]
    _, config = started(run, *LLAMA, "--global-batch", 64)
    assert config["train_batch_size"] == 64


def test_for_the_trainer_what_it_fills_stays_open_and_the_rest_is_chosen(run: Run) -> None:
    text, config = started(run, *LLAMA, "--runtime", "transformers")
    assert json.loads(text) == config
    assert config["train_micro_batch_size_per_gpu"] == "auto"
    assert config["optimizer"]["params"]["lr"] == "auto"
    assert config["zero_optimization"]["stage"] in (0, 1, 2, 3)


def test_on_one_gpu_there_is_nothing_to_shard(run: Run) -> None:
    _, config = started(run, "--params", "125e6", "--gpus", 1, "--device", "a100-80gb")
    assert config["zero_optimization"] == {"stage": 0}


def test_into_a_file_that_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    assert run("init", "-o", path)[0] == 0
    written = path.read_text()
    code, _, err = run("init", *LLAMA, "-o", path)
    assert code == 2 and "--force" in err and path.read_text() == written
    assert run("init", *LLAMA, "-o", path, "--force")[0] == 0
    assert path.read_text() != written


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--gpus", 8), "--model (or --params), --gpus and --device together"),
        (("--runtime", "nobody"), "--runtime"),
        (("--params", "400e9", "--gpus", 1, "--device", "v100-16gb"), "no allowed choice"),
        (("--model", "no-such-model", "--gpus", 1, "--device", "h100"), "no-such-model"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[object, ...], told: str) -> None:
    code, out, err = run("init", *arguments)
    assert (code, out) == (2, "")
    assert told in err
