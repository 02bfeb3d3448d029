"""What a plan decides about shards and gradients, and that estimates follow it."""

from typing import Any

import pytest

import dsconfig
from dsconfig import Plan
from dsconfig.facts import gather
from dsconfig.runtimes.storage import storage_of

OFFLOADED = {"stage": 2, "offload_optimizer": {"device": "cpu"}}


def planned(config: dict[str, Any]) -> Plan:
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}} | config
    world = gather(gpus=4, model="gpt2")
    return dsconfig.plan(dsconfig.resolve(config, world), world)


@pytest.mark.parametrize(
    ("more", "masters_on_host", "shard", "gradient"),
    [
        ({"zero_optimization": {"stage": 2}}, False, "fp32", "bf16"),
        ({"zero_optimization": OFFLOADED}, True, "bf16", "bf16"),
        # Gradients are reduced in a wider dtype than the weights have.
        (
            {"zero_optimization": OFFLOADED, "communication_data_type": "fp32"},
            False,
            "fp32",
            "fp32",
        ),
        # Summed on the device over the micro steps.
        (
            {"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}},
            False,
            "fp32",
            "fp32",
        ),
        (
            {"zero_optimization": OFFLOADED, "bf16": {"enabled": False}},
            False,
            "fp32",
            "fp32",
        ),
    ],
)
def test_plan_decides_shards_and_gradients(
    more: dict[str, Any], masters_on_host: bool, shard: str, gradient: str
) -> None:
    plan = planned({"bf16": {"enabled": True}} | more)
    found = plan.storage
    assert (found.masters_on_host, found.shard, found.gradient) == (
        masters_on_host,
        shard,
        gradient,
    )
    assert Plan.from_json(plan.to_json()).storage == found == storage_of(plan.effective, plan.mesh)


def test_reductions_in_another_sixteen_bit_dtype_keep_fp32_shards() -> None:
    config = {"fp16": {"enabled": True}, "communication_data_type": "bf16"}
    plan = planned({"zero_optimization": OFFLOADED, **config})
    assert not plan.storage.masters_on_host
    same = planned({"zero_optimization": OFFLOADED, "fp16": {"enabled": True}})
    # fp32 shards are counted on the device, beside the unsharded weights.
    assert plan.memory["peak_bytes"] > same.memory["peak_bytes"]


def test_shards_beside_divided_experts_are_fp32() -> None:
    world = gather(gpus=4, model="mistralai/Mixtral-8x7B-v0.1")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": OFFLOADED,
        "expert_parallel": {"enabled": True, "autoep_size": 2, "preset_model": "mixtral"},
    }
    resolution = dsconfig.resolve(config, world, runtime="dsengine")
    plan = dsconfig.plan(resolution, world)
    assert plan.mesh.expert == 2
    assert (plan.storage.masters_on_host, plan.storage.shard) == (False, "fp32")
