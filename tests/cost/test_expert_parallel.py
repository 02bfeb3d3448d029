"""Expert parallelism in the estimate: experts are divided, states stay divided over all ranks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import command_line
import dsconfig
from dsconfig.cost.activations import activations_of
from dsconfig.cost.choices import Choice, usual_config
from dsconfig.cost.estimator import estimate_option
from dsconfig.cost.step_time import step_time
from dsconfig.cost.weights import weights_of
from dsconfig.cost.workload import Workload, workload
from dsconfig.facts import FactError, gather
from dsconfig.mesh import Degrees, Mesh
from narrowing import not_none

ORACLE = Path(__file__).parents[1] / "oracle"
PUBLISHED = json.loads((ORACLE / "expert_parallel.json").read_text())
MOE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpus": 16, "device": "h100", "seq_len": 2048}
EXPERTS = 48 * 128 * 3 * 2048 * 768


def job(stage: int, degree: int, runtime: str = "deepspeed") -> Workload:
    facts = gather(**MOE, micro_batch=1, expert_parallel=degree)
    effective = usual_config(facts, Choice(stage=stage))
    return workload(effective, facts, in_engine=runtime == "dsengine")


@pytest.mark.parametrize("row", PUBLISHED["rows"], ids=lambda row: row["id"])
def test_published_peaks(row: dict[str, Any]) -> None:
    model = row["model"]
    facts = gather(
        model=ORACLE / "expert_models" / model if model.endswith(".json") else model,
        gpus=row["gpus"],
        device="h100",
        seq_len=2048,
        micro_batch=1,
        precision="bf16",
        master_weights="none",
        expert_parallel=row["expert_parallel"],
        trainable=row.get("trainable"),
        training_args={"gradient_checkpointing": True, "loss": "chunked"},
    )
    effective = usual_config(facts, Choice(stage=row["stage"]))
    zero = replace(effective.zero, mics_shard_size=row["fsdp"] or effective.zero.mics_shard_size)
    option = estimate_option(replace(effective, zero=zero), facts, runtime="dsengine")
    ratio = option.device.peak_bytes / 1e9 / row["published_gb"]
    assert abs(ratio - 1) <= row["tolerance"], f"{row['id']}: {ratio:.3f}"


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("degree", [2, 8, 16])
def test_states_are_divided_over_all_ranks(stage: int, degree: int) -> None:
    assert job(stage, degree).owned == pytest.approx(job(stage, 1).owned, rel=1e-6)


def test_experts_are_divided_below_stage_3() -> None:
    model = not_none(gather(**MOE).model)
    assert weights_of(model).expert_elements == EXPERTS
    divided = weights_of(model, Degrees(expert=8))
    assert divided.expert_elements == EXPERTS // 8
    assert divided.elements == model.parameters - EXPERTS + EXPERTS // 8


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_peak_falls_by_the_experts_of_other_ranks(stage: int) -> None:
    facts = [gather(**MOE, micro_batch=1, expert_parallel=degree) for degree in (1, 8)]
    before, after = (
        estimate_option(usual_config(each, Choice(stage=stage)), each, runtime="deepspeed")
        for each in facts
    )
    weights = [
        component.bytes
        for option in (before, after)
        for component in option.device.components
        if component.name == "weights"
    ]
    assert weights[0] - weights[1] == 2 * EXPERTS * 7 // 8
    saved = before.device.peak_bytes - after.device.peak_bytes
    assert saved >= 0.999 * 2 * EXPERTS * 7 // 8


@pytest.mark.parametrize("tensor", [1, 2])
def test_rows_sent_and_received_are_counted(tensor: int) -> None:
    facts = [
        gather(**MOE, micro_batch=1, expert_parallel=degree, tensor_parallel=tensor)
        for degree in (1, 2, 8)
    ]
    alone, two, eight = (activations_of(usual_config(f, Choice(stage=2)), f) for f in facts)
    chosen, row = 8, 2048 * 2048 * 2
    assert (alone.dispatched, eight.dispatched) == (0, 2 * chosen * row // tensor)
    assert eight.temporaries == row * 2 + eight.dispatched
    inner = 2 * chosen * 768 / 2048
    assert alone.temporaries == row * 2 + row * inner / tensor
    assert two == eight, "balanced routing: as many rows with any degree"


def test_mesh_divides_experts_over_fewer_ranks() -> None:
    over = Mesh.over(64, Degrees(expert=32), sharded=True)
    assert (over.state_ranks, over.expert_state_ranks) == (64, 2)
    grouped = Mesh.over(64, Degrees(expert=32), sharded=True, group=2)
    assert (grouped.state_ranks, grouped.expert_state_ranks) == (2, 2)
    assert Mesh.over(64, Degrees(expert=32), sharded=False).expert_state_ranks == 1


def test_tokens_are_exchanged_with_experts() -> None:
    sent: list[int] = []
    for degree in (1, 8):
        facts = gather(**MOE, micro_batch=1, expert_parallel=degree)
        time = step_time(usual_config(facts, Choice(stage=2)), facts, runtime="deepspeed")
        sent.append(time.traffic.get("all_to_all", 0))
    layers, chosen, hidden, width = 48, 8, 2048, 2
    assert sent == [0, 4 * layers * chosen * 2048 * hidden * width * 7 // 8]


def test_file_and_flag_estimate_the_same(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    }
    divided = {**config, "expert_parallel": {"enabled": True, "autoep_size": 8}}

    def peak(config: dict[str, Any], **flags: Any) -> int:
        facts = gather(**MOE, **flags)
        resolution = dsconfig.resolve(config, facts, runtime="deepspeed")
        return dsconfig.estimate(resolution, facts).options[0].device.peak_bytes

    assert peak(divided) == peak(config, expert_parallel=8) < peak(config)
    disabled = {**config, "expert_parallel": {"enabled": False, "autoep_size": 8}}
    assert peak(disabled) == peak(config)
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(divided))
    done = command_line.run(
        *("estimate", path, "--model", "qwen3-30b-a3b", "--gpus", "16", "--device", "h100"),
        *("--seq-len", "2048", "--runtime", "deepspeed"),
    )
    assert "not estimated" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"expert_parallel": 3}, "expert_parallel: 3 does not divide 16 data-parallel ranks; use"),
        ({"sequence_parallel": 5}, "sequence_parallel: 16 ranks are not divisible by 5; use 4"),
        ({"tensor_parallel": 3}, "tensor_parallel: 16 ranks are not divisible by 3; use 2"),
        (
            {"tensor_parallel": 3, "sequence_parallel": 2},
            "gpus: 16 ranks are not divisible by tensor x sequence = 3 x 2 = 6; specify 12 or 18",
        ),
    ],
)
def test_wrong_degree_names_the_nearest(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(FactError) as caught:
        gather(**MOE, **flags)
    assert str(caught.value).startswith(message)
