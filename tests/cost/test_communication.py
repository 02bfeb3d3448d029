"""Communication of a step: plan, step time and dry run count the same bytes."""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

import dsconfig
import dsengine
from dsconfig.cost.communication import CollectiveKind, collectives, volume_of
from dsconfig.cost.hardware import rates
from dsconfig.cost.step_time import step_time
from dsconfig.facts import gather, hf_config
from dsengine.observation.communication import CommunicationLog
from dsengine.simulation import dry_run
from dsengine.torch_private.tensors import replaced

pytestmark = pytest.mark.torch

MODEL = hf_config.model(
    {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 1001,
    }
)
"""No multiple of the ranks: shards are padded."""
CPU = {"device": "cpu"}
KINDS = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce",
}
PARAMETERS = 30
SMALL = (("all_reduce", 24), ("all_reduce", 4 * (PARAMETERS + 1)))
"""A norm with the order of reductions, and the flags of used parameters."""


def random_case(seed: int) -> tuple[dict[str, Any], int, str]:
    """Return a config, the number of ranks, and the device."""
    pick = random.Random(seed)
    stage, ranks = pick.randrange(4), pick.choice((2, 4, 8))
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": pick.choice((True, False))}
    zero |= pick.choice(({}, {"reduce_bucket_size": pick.choice((5_000, 100_000))}))
    if stage:
        zero |= pick.choice(({}, {"mics_shard_size": pick.choice((1, 2))}))
        zero |= pick.choice(({}, {"offload_optimizer": CPU}))
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = pick.choice((0, 0, 100, 100_000))
        zero["stage3_max_reuse_distance"] = pick.choice((0, 200_000, 1_000_000))
        zero |= pick.choice(({}, {"stage3_prefetch_bucket_size": 0}))
        if "mics_shard_size" not in zero:
            zero |= pick.choice(({}, {"zero_hpz_partition_size": pick.choice((1, 2))}))
        if "offload_optimizer" in zero:
            zero |= pick.choice(({}, {"offload_param": CPU}))
    precision = pick.choice(({}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}))
    wire = pick.choice(({}, {}, {"communication_data_type": "fp32"}))
    sums = pick.choice(({}, {}, {"data_types": {"grad_accum_dtype": "fp32"}}))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": pick.randint(1, 4),
        "gradient_clipping": pick.choice((0.0, 1.0)),
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": zero,
        **precision,
        **wire,
        **sums,
    }
    return config, ranks, pick.choice(("a100-80gb", "cpu"))


def simulated(plan: dsconfig.Plan, device: str) -> Counter[str]:
    """Return bytes by collective in a dry run, without norms.

    On the CPU gathers and reduce-scatters are messages: the bytes that a rank sends. Elsewhere the
    full tensor is counted.
    """
    counts: dict[tuple[str, int], int] = {}

    def keep(log: CommunicationLog) -> dict[str, int]:
        counts.update(log.counts)
        return {}

    with replaced(dry_run, "_by_collective", keep):
        dsengine.simulate(plan, MODEL, device="cpu" if device == "cpu" else "cuda")
    total: Counter[str] = Counter()
    for (name, size), count in counts.items():
        if (name, size) not in SMALL:
            total[KINDS[name]] += size * count
    return total


def check(seed: int) -> None:
    config, ranks, device = random_case(seed)
    facts = gather(gpus=ranks, model=MODEL, device=device, seq_len=128)
    resolution = dsconfig.resolve(config, facts)
    effective = resolution.effective
    assert effective is not None, resolution.refusals
    plan = dsconfig.plan(resolution, facts)
    records = collectives(effective, plan.mesh, volume_of(effective, facts, plan.mesh))
    counted: Counter[str] = Counter()
    for each in records:
        messages = device == "cpu" and each.kind is not CollectiveKind.ALL_REDUCE
        counted[each.kind] += round(each.sent if messages else each.bytes * each.count)
    assert counted == simulated(plan, device), f"seed {seed}: {config} on {ranks} ranks"

    step = step_time(effective, facts)
    sent = sum(each.sent for each in records)
    assert plan.traffic == step.traffic
    assert sum(plan.traffic.values()) == pytest.approx(sent, abs=len(KINDS))
    seconds = sent / rates(facts).link
    assert step.communication <= seconds * 1.000001
    if not any(each.overlaps for each in records):
        assert step.communication == pytest.approx(seconds)


def sent_and_seconds(zero: dict[str, Any], micro_steps: int = 1) -> tuple[Mapping[str, int], float]:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_steps,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 1, "overlap_comm": False, **zero},
    }
    facts = gather(gpus=8, model="gpt2", device="a100-80gb", seq_len=128)
    plan = dsconfig.plan(dsconfig.resolve(config, facts), facts)
    seconds = plan.step["communication_seconds"]
    assert seconds is not None
    return plan.traffic, seconds


def test_offloaded_stage_1_reduces_in_every_micro_step() -> None:
    (one, short), (four, long) = (sent_and_seconds({"offload_optimizer": CPU}, n) for n in (1, 4))
    assert four["reduce_scatter"] == pytest.approx(4 * one["reduce_scatter"], abs=4)
    assert four["all_gather"] == one["all_gather"]
    assert long / short == pytest.approx(sum(four.values()) / sum(one.values()))


def test_sharding_groups_change_bytes_and_time_alike() -> None:
    (whole, short), (groups, long) = map(sent_and_seconds, ({}, {"mics_shard_size": 2}))
    assert long / short == pytest.approx(sum(groups.values()) / sum(whole.values()))
    assert groups.keys() - whole.keys() == {"all_reduce"}


LONG = [pytest.mark.long]
COVERING = (0, 1, 2, 5, 6, 9)
"""Seeds with each stage, device, offload and kind of group; `make test-all` runs the others."""


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=LONG * (seed not in COVERING)) for seed in range(10)]
)
def test_plan_step_time_and_dry_run_count_the_same_bytes(seed: int) -> None:
    check(seed)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10, 200))
def test_bytes_of_190_more_random_configs(seed: int) -> None:
    check(seed)
