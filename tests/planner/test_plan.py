"""Building plans: mesh, units, traffic, coverage, JSON."""

import json
from typing import Any

import pytest

import dsconfig
from dsconfig import DeviceFacts, Facts, Plan, PlannedStage
from dsconfig.facts import gather
from dsconfig.planner.build import PlanError
from dsconfig.runtimes.effective import Zero, mesh_of

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "stage3_max_reuse_distance": 0},
    "bf16": {"enabled": True},
}


def facts() -> Facts:
    return gather(gpus=8, device="a100-80gb", model="llama-2-7b", seq_len=128)


def planned(config: dict[str, object] | None = None) -> Plan:
    world = facts()
    return dsconfig.plan(dsconfig.resolve(config or CONFIG, world), world)


def test_plan_has_batch() -> None:
    batch = planned().batch
    assert (batch.global_batch, batch.micro_batch, batch.accumulation) == (48, 2, 3)


def test_every_parameter_is_in_one_unit() -> None:
    plan = planned()
    assert (
        sum(unit.elements for unit in plan.stages[0].units) == plan.model_elements == 6_738_415_616
    )


def test_each_layer_is_a_unit() -> None:
    modules = [unit.modules for unit in planned().stages[0].units]
    assert [each for each in modules if each in (("model.layers.0",), ("model.layers.31",))] == [
        ("model.layers.0",),
        ("model.layers.31",),
    ]


def test_stage_3_gathers_twice_per_micro_batch_and_reduces_once() -> None:
    plan = planned(
        {
            **CONFIG,
            "zero_optimization": {
                **CONFIG["zero_optimization"],
                "stage3_param_persistence_threshold": 0,
            },
        }
    )
    parameters = 6_738_415_616
    assert plan.traffic["all_gather"] == parameters * 2 * 2 * 3 * 7 // 8
    assert plan.traffic["reduce_scatter"] == parameters * 2 * 3 * 7 // 8


def test_stage_1_reduces_once_per_step() -> None:
    plan = planned({**CONFIG, "zero_optimization": {"stage": 1}})
    sent = 6_738_415_616 * 2 * 7 // 8
    assert plan.traffic == {"all_gather": sent, "reduce_scatter": sent}


def test_replicas_all_reduce_shards() -> None:
    plan = planned({**CONFIG, "zero_optimization": {"stage": 1, "mics_shard_size": 4}})
    assert plan.traffic["all_reduce"] == 2 * (6_738_415_616 * 2 // 4) // 2
    assert plan.traffic["reduce_scatter"] == 6_738_415_616 * 2 * 3 // 4


def test_stage_0_all_reduces_gradients() -> None:
    plan = planned({**CONFIG, "zero_optimization": {"stage": 0}})
    assert plan.stages == (PlannedStage(),)
    assert plan.traffic == {"all_reduce": 2 * (6_738_415_616 * 2 * 7 // 8)}


def test_traffic_with_parameter_count_only() -> None:
    world = gather(gpus=8, params="7e9")
    plan = dsconfig.plan(dsconfig.resolve(CONFIG, world), world)
    assert plan.stages == (PlannedStage(),)
    sent = 7_000_000_000 * 2 * 2 * 3 * 7 // 8
    assert plan.traffic["all_gather"] == pytest.approx(sent, rel=1e-6)


def test_json_keys_are_stable() -> None:
    data = json.loads(planned().to_json())
    assert data["format_version"] == "4.0"
    assert {
        "runtime",
        "mesh",
        "stage",
        "precision",
        "batch",
        "stages",
        "optimizer",
        "scheduler",
        "tiers",
        "checkpointing",
        "monitors",
        "memory",
        "traffic",
        "coverage",
    } <= data.keys()
    assert set(data["stages"][0]["units"][0]) == {
        "modules",
        "elements",
        "gather",
        "reshard_after_forward",
        "prefetch",
    }
    assert set(data["coverage"][0]) == {"pointer", "status", "by"}


def test_policy_names_dtypes_of_masters_and_states() -> None:
    def dtypes(**bf16: bool) -> tuple[str, str]:
        world = gather(gpus=8)
        config = CONFIG | {"bf16": {"enabled": True, **bf16}}
        resolution = dsconfig.resolve(config, world, runtime="deepspeed")
        assert resolution.effective is not None
        numerics = resolution.effective.numerics
        return str(numerics.master_dtype), str(numerics.state_dtype)

    assert dtypes() == ("fp32", "fp32")
    both = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    assert dtypes(**both) == ("bf16", "bf16")


def test_json_tiers_name_storage() -> None:
    on_disk = {"device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 5}
    zero = {"stage": 3, "offload_optimizer": on_disk, "offload_param": {"device": "none"}}
    world = gather(gpus=8, model="gpt2")
    plan = dsconfig.plan(dsconfig.resolve(CONFIG | {"zero_optimization": zero}, world), world)
    tiers = json.loads(plan.to_json())["tiers"]
    assert tiers["parameters"] == {"tier": "device"}
    wanted = {"tier": "nvme", "nvme_path": "/local_nvme", "buffer_count": 5}
    assert wanted.items() <= tiers["optimizer"].items()


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        (Zero(stage=0), (1, 8)),
        (Zero(stage=2), (8, 1)),
        (Zero(stage=3, mics_shard_size=4), (4, 2)),
    ],
)
def test_the_mesh(zero: Zero, expected: tuple[int, int]) -> None:
    mesh = mesh_of(zero, Facts(world_size=8))
    assert (mesh.shard, mesh.replicate) == expected


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_shard_group_must_divide_ranks(stage: int) -> None:
    zero = {"stage": stage, "mics_shard_size": 3}
    world = Facts(world_size=8)
    with pytest.raises(PlanError, match="mics_shard_size"):
        dsconfig.plan(dsconfig.resolve(CONFIG | {"zero_optimization": zero}, world), world)


def test_split_that_engine_lacks_is_refused() -> None:
    zero = {"zero_optimization": {"stage": 2}}
    for axis, is_executed in (("tensor", True), ("pipeline", False)):
        degree: Any = {f"{axis}_parallel": 2}
        world = gather(gpus=8, model="llama-2-7b", **degree)
        resolution = dsconfig.resolve(CONFIG | zero, world)
        if is_executed:
            assert getattr(dsconfig.plan(resolution, world).mesh, axis) == 2
        else:
            reason = f"{axis}_parallel=2: gradients and parameters of pipeline stages are not"
            with pytest.raises(PlanError, match=reason):
                dsconfig.plan(resolution, world)
        resolution = dsconfig.resolve(CONFIG | zero, world, runtime="deepspeed")
        assert getattr(dsconfig.plan(resolution, world).mesh, axis) == 2


def test_ranks_along_the_sequence_share_samples() -> None:
    world = gather(gpus=8, model="gpt2")
    config = {"train_micro_batch_size_per_gpu": 2, "sequence_parallel_size": 4}
    plan = dsconfig.plan(
        dsconfig.resolve(config | {"zero_optimization": {"stage": 3}}, world), world
    )
    assert (plan.mesh.shard, plan.mesh.sequence, plan.batch.global_batch) == (2, 4, 4)


@pytest.mark.parametrize("counted", [16, 32])
def test_ranks_of_a_tensor_group_share_samples(counted: int) -> None:
    """Beside the other two keys DeepSpeed requires a global batch that counts all ranks."""
    world = gather(gpus=8, model="llama-2-7b")
    triple = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    if counted == 32:
        triple["train_batch_size"] = 32
    config = {**triple, "tensor_parallel": {"autotp_size": 2}}
    plan = dsconfig.plan(dsconfig.resolve(config, world), world)
    assert (plan.mesh.tensor, plan.batch.global_batch, plan.batch.micro_batch) == (2, 16, 2)


def test_traffic_counts_the_part_of_a_tensor_rank() -> None:
    zero = {"zero_optimization": {"stage": 1}}

    def reduced(**degree: Any) -> int:
        world = gather(gpus=8, model="gpt2", **degree)
        resolution = dsconfig.resolve(CONFIG | zero, world, runtime="deepspeed")
        return dsconfig.plan(resolution, world).traffic["reduce_scatter"]

    assert reduced(tensor_parallel=2) == pytest.approx(reduced() / 2 * (3 / 4) / (7 / 8), rel=1e-3)


def test_config_without_batch_cannot_be_planned() -> None:
    world = Facts(world_size=2, device=DeviceFacts(name="cpu", kind="cpu"))
    with pytest.raises(PlanError):
        dsconfig.plan(dsconfig.resolve({}, world), world)


def test_replan_checks_new_world_size() -> None:
    zero = {"stage": 3, "zero_hpz_partition_size": 2}
    config = {
        "train_batch_size": 12,
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": zero,
    }
    four = Facts(world_size=4)
    made = dsconfig.plan(dsconfig.resolve(config, four), four)
    assert dsconfig.replan(made, Facts(world_size=2)).batch.accumulation == 6
    with pytest.raises(PlanError, match="zero_hpz_partition_size 2 does not divide 3 ranks"):
        dsconfig.replan(made, Facts(world_size=3))
