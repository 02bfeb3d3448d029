"""Estimates of bf16 training without fp32 master weights (``--master-weights``)."""

from typing import Any

import pytest

import command_line
import dsconfig
from dsconfig.cost import tuning
from dsconfig.cost.estimate import Option
from dsconfig.facts import gather
from dsconfig.runtimes.base import runtime_of

PARAMETERS = 6_738_415_616
"""Of llama-2-7b."""
BF16: dict[str, Any] = {"enabled": True}
MASTERS, STATES = "bf16_master_weights_and_grads", "bf16_optimizer_states"


def estimated(
    kind: str | None,
    stage: int,
    *,
    bf16: dict[str, Any] = BF16,
    runtime: str = "dsengine",
    ranks: int = 1,
    **more: Any,
) -> Option:
    facts = gather(gpus=ranks, model="llama-2-7b", device="h200", master_weights=kind)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": bf16,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {"stage": stage},
        **more,
    }
    return dsconfig.estimate(dsconfig.resolve(config, facts, runtime=runtime), facts).options[0]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_without_masters_weights_gradients_and_states_are_bf16(stage: int) -> None:
    option = estimated("none", stage, ranks=8 if stage else 1)
    sizes = {part.name: part.bytes for part in option.device.components}
    shards = 8 if stage else 1
    # At stages 1 and 2 the shards are views of the unsharded weights.
    weights = "unsharded weights" if stage in (1, 2) else "trained weights"
    expected = 2 * PARAMETERS / (1 if stage in (1, 2) else shards)
    assert sizes[weights] == pytest.approx(expected, rel=0.06)
    assert sizes["optimizer state"] == pytest.approx(4 * PARAMETERS / shards, rel=0.001)
    assert "fp32 master weights" not in sizes


def test_one_gpu_holds_eight_bytes_per_parameter_without_masters() -> None:
    """2 for weights, 2 for gradients, 4 for both moments; with fp32 masters it is 18."""
    assert estimated("none", 0).device.peak_bytes == pytest.approx(8 * PARAMETERS, rel=0.01)
    assert estimated("bf16", 0).device.peak_bytes == pytest.approx(10 * PARAMETERS, rel=0.01)
    assert estimated("fp32", 0) == estimated(None, 0)


def test_a_sharded_bf16_master_is_the_weight_itself() -> None:
    for stage in (1, 2, 3):
        without, narrow = (estimated(kind, stage, ranks=8) for kind in ("none", "bf16"))
        assert without.device.peak_bytes == narrow.device.peak_bytes


def test_the_update_moves_half_the_bytes() -> None:
    seconds = [
        option.step.compute_seconds
        for kind in ("none", None)
        if (option := estimated(kind, 0)).step is not None
    ]
    assert seconds[0] < seconds[1]


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("none", {"bf16": {"enabled": False}}, "trains in fp32; set bf16.enabled to true"),
        ("bf16", {"bf16": {"enabled": False}, "fp16": {"enabled": True}}, "trains in fp16"),
        ("none", {"runtime": "deepspeed"}, f"bf16.{MASTERS}"),
        ("bf16", {"runtime": "deepspeed"}, f"bf16.{MASTERS}"),
        ("none", {"bf16": BF16 | {MASTERS: False}}, f"none, but bf16.{MASTERS} is false"),
        ("bf16", {"bf16": BF16 | {STATES: False}}, f"bf16, but bf16.{STATES} is false"),
        ("none", {"data_types": {"grad_accum_dtype": "fp32"}}, "data_types.grad_accum_dtype"),
    ],
)
def test_contradictions_name_the_key(kind: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match="master_weights: ") as error:
        estimated(kind, 2, **changes)
    assert named in str(error.value)


def test_fp32_contradicts_the_keys_of_deepspeed() -> None:
    keys = {MASTERS: True, STATES: True}
    assert estimated("bf16", 2, bf16=BF16 | keys, runtime="deepspeed") == estimated(
        None, 2, bf16=BF16 | keys, runtime="deepspeed"
    )
    with pytest.raises(ValueError, match=f"fp32, but bf16.{MASTERS} is true"):
        estimated("fp32", 2, bf16=BF16 | keys, runtime="deepspeed")


def test_a_plan_keeps_the_master_weights_of_the_config() -> None:
    facts = gather(gpus=1, model="llama-2-7b", master_weights="none")
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": BF16}
    with pytest.raises(ValueError, match="master_weights= is for estimates"):
        dsconfig.plan(dsconfig.resolve(config, facts), facts)


def test_tune_ranks_with_the_specified_master_weights() -> None:
    def speed(kind: str | None) -> float:
        facts = gather(
            gpus=2, model="llama-2-7b", device="a100-40gb", seq_len=2048, master_weights=kind
        )
        step = tuning.tune(facts, runtime=runtime_of("dsengine"))[0].option.step
        assert step is not None
        return step.tokens_per_second_per_gpu

    assert speed("none") > 1.2 * speed(None)


def test_tuned_config_has_the_keys_of_deepspeed() -> None:
    facts = gather(
        gpus=2, model="qwen2.5-0.5b", device="a100-80gb", seq_len=512, master_weights="bf16"
    )
    candidates = tuning.tune(facts, runtime=runtime_of("deepspeed"))
    assert candidates and all(each.choice.stage > 0 for each in candidates)
    for each in candidates:
        assert each.config["bf16"] == BF16 | {MASTERS: True, STATES: True}
        report = dsconfig.validate(each.config, facts, runtime="deepspeed")
        assert {error.code for error in report.errors} <= {"DSC432"}  # no path for NVMe


def test_none_implies_a_program_that_can() -> None:
    facts = ["--model", "llama-2-7b", "--gpus", "4", "--seq-len", "2048", "--device", "rtx-4090"]
    facts.append("--master-weights")
    done = command_line.run("estimate", *facts, "none")
    assert done.returncode == 0 and "bf16 with no master weights" in done.stdout
    assert "inferred from --master-weights none" in done.stdout and "torchtune" in done.stderr
    unknown = command_line.run("estimate", *facts, "half")
    assert unknown.returncode == 2
    assert "--master-weights: 'half' is not one of none, fp32, bf16" in unknown.stderr
    other = command_line.run("tune", *facts, "none", "--runtime", "deepspeed")
    assert other.returncode == 2
    assert "--master-weights: none is not possible with DeepSpeed" in other.stderr
