"""DSC478: degrees that divide neither the model nor the sequence, from every source."""

from typing import Any

import pytest

import command_line
import dsconfig
from dsconfig import Effect
from dsconfig.facts import gather

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 3},
}
HEADS = "8 key/value heads are neither divisible by it nor a divisor of it"
ALL = ("deepspeed", "transformers", "accelerate", "dsengine")


def found(config: dict[str, Any], runtime: str | None, **facts: Any) -> list[dsconfig.Diagnostic]:
    known = gather(**{"gpus": 24, "model": "llama-3-8b", **facts})
    report = dsconfig.validate(config, known, runtime=runtime)
    return [each for each in report.diagnostics if each.code == "DSC478"]


@pytest.mark.parametrize("runtime", ALL)
@pytest.mark.parametrize(
    ("config", "facts", "pointer", "problem", "use"),
    [
        ({"sequence_parallel_size": 12}, {}, "/sequence_parallel_size", HEADS, 8),
        ({}, {"sequence_parallel": 12}, "", HEADS, 8),
        ({}, {"sequence_parallel": 3, "seq_len": 4096}, "", "4096 tokens", 2),
        ({}, {"training_args": {"parallelism_config": {"sp_size": 12}}}, "", HEADS, 8),
        (
            {},
            {"accelerate_config": {"parallelism_config": {"parallelism_config_sp_size": 6}}},
            "",
            HEADS,
            4,
        ),
    ],
    ids=["key", "flag", "length", "arguments", "yaml"],
)
def test_indivisible_sequence_is_an_error(
    runtime: str,
    config: dict[str, Any],
    facts: dict[str, Any],
    pointer: str,
    problem: str,
    use: int,
) -> None:
    config = CONFIG | config
    (error,) = found(config, runtime, **facts)
    assert (error.effect, error.pointer, error.help) == (Effect.REFUSED, pointer, f"use {use}")
    assert problem in error.message and f"nearest possible: {use}" in error.message
    known = gather(**{"gpus": 24, "model": "llama-3-8b", **facts})
    resolution = dsconfig.resolve(config, known, runtime=runtime)
    assert any(problem in each.message for each in resolution.refusals)
    for function in (dsconfig.estimate, dsconfig.plan):
        with pytest.raises(ValueError, match=problem):
            function(resolution, known)
    near = {name: value for name, value in facts.items() if name != "sequence_parallel"}
    assert not found(CONFIG, runtime, **{**near, "sequence_parallel": use})


def test_length_alone_needs_no_model() -> None:
    facts = gather(gpus=8, seq_len=4098, sequence_parallel=4)
    report = dsconfig.validate(CONFIG, facts, runtime="dsengine")
    assert [each.help for each in report.refusals] == ["use 2"]


def test_uneven_heads_under_autotp_are_a_note() -> None:
    config = CONFIG | {"tensor_parallel": {"autotp_size": 3}}
    (note,) = found(config, "deepspeed")
    assert note.effect is Effect.NOTE and "8 key/value heads" in note.message
    assert not found(CONFIG | {"tensor_parallel": {"autotp_size": 4}}, "deepspeed")


def test_experts_are_divided_evenly() -> None:
    config = CONFIG | {"expert_parallel": {"enabled": True, "autoep_size": 12}}
    (error,) = found(config, "deepspeed", model="qwen3-30b-a3b")
    assert "128 experts" in error.message and error.help == "use 8"
    config["expert_parallel"]["enabled"] = False
    assert not found(config, "deepspeed", model="qwen3-30b-a3b")


def test_degree_that_divides_is_not_reported() -> None:
    assert not found(CONFIG | {"sequence_parallel_size": 8}, None, seq_len=4096)
    assert not found(CONFIG | {"sequence_parallel_size": "auto"}, "dsengine")


def test_tune_refuses_an_indivisible_flag() -> None:
    done = command_line.run(
        *("tune", "--model", "llama-3-8b", "--gpus", "24", "--device", "h100"),
        *("--seq-len", "4096", "--sequence-parallel", "3", "--runtime", "deepspeed"),
    )
    assert done.returncode == 2
    assert "--sequence-parallel: 3: 4096 tokens are not divisible by it; use 2" in done.stderr
