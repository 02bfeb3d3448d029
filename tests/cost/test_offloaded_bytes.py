"""Bytes on the host, on disk and in scratch, from the sizes of the model."""

from dataclasses import replace
from typing import Any

import pytest

import dsconfig
from dsconfig.cost.activations import Recompute, activations_of, recompute_of, style_of
from dsconfig.cost.choices import Choice, usual_config
from dsconfig.cost.estimate import Option
from dsconfig.cost.estimator import estimate_option
from dsconfig.facts import Facts, TrainingFacts
from dsconfig.facts.gathering import gather
from dsconfig.runtimes.effective import Tier

RANKS = 8


def world(**changes: Any) -> Facts:
    given = {
        "gpus": RANKS,
        "model": "llama-2-7b",
        "device": "a100-80gb",
        "micro_batch": 1,
        "seq_len": 1024,
        "nvme": "/local_nvme",
    }
    return gather(**{**given, **changes})


def sizes(option: Option, tier: str) -> dict[str, int]:
    return {part.name: part.bytes for part in getattr(option, tier).components}


def owned(facts: Facts) -> int:
    """Elements of one rank's part, rounded up."""
    assert facts.model is not None
    return -(-facts.model.parameters // RANKS)


def test_deepspeed_nvme_has_masters_moments_gradients_and_weights() -> None:
    facts = world()
    moved = Choice(stage=3, optimizer=Tier.NVME, parameters=Tier.NVME)
    on_disk = sizes(estimate_option(usual_config(facts, moved), facts, runtime="deepspeed"), "nvme")
    share = owned(facts) * RANKS
    assert on_disk == {
        "master weights": 4 * share,
        "optimizer state": 8 * share,
        "gradients": 4 * share,
        "weights": 2 * share,
    }


def test_dsengine_nvme_has_masters_moments_and_weights_beyond_max_in_cpu() -> None:
    facts = world()
    moved = Choice(stage=3, optimizer=Tier.NVME, parameters=Tier.NVME)
    config = usual_config(facts, moved)
    on_disk = sizes(estimate_option(config, facts, runtime="dsengine"), "nvme")
    assert facts.model is not None and config.zero.offload_param is not None
    states = facts.model.parameters
    assert on_disk["master weights"] == pytest.approx(4 * states, rel=0.001)
    assert on_disk["optimizer state"] == pytest.approx(8 * states, rel=0.001)
    kept = config.zero.offload_param.max_in_cpu
    filed = max(0, owned(facts) - kept)
    assert on_disk["weights"] == 2 * filed * RANKS


def test_sub_groups_below_1_mib_stay_in_host_memory() -> None:
    facts = world()
    config = usual_config(facts, Choice(stage=3, optimizer=Tier.NVME))
    for elements, swapped in ((2**18, True), (2**18 - 1, False)):
        small = replace(config, zero=replace(config.zero, sub_group_size=elements))
        option = estimate_option(small, facts, runtime="deepspeed")
        assert ("master weights" in sizes(option, "nvme")) is swapped, elements
        assert ("master weights" in sizes(option, "host")) is not swapped, elements


@pytest.mark.parametrize("stage", [1, 2])
def test_offload_below_stage_3_keeps_scratch_for_largest_parameter(stage: int) -> None:
    facts = world()
    config = usual_config(facts, Choice(stage=stage, optimizer=Tier.HOST))
    parts = estimate_option(config, facts, runtime="deepspeed").device.components
    scratch = {part.bytes for part in parts if part.name == "offload scratch"}
    assert scratch == {2 * 32000 * 4096}, "the embedding in 16 bits"


def test_fused_loss_is_not_the_default() -> None:
    facts = world()
    config = usual_config(facts, Choice(stage=2))
    style = style_of(config, facts)
    assert not style.fused and not style.compiled and style.flash
    logits = 1024 * 32000
    kept = activations_of(config, facts)
    assert kept.logits_forward == logits * (2 + 4 + 4), "16 bits, their fp32 copy, log-softmax"
    assert kept.logits_backward == logits * (2 + 4 + 4 + 4), "and two gradients; the copy is gone"


@pytest.mark.parametrize(
    ("arguments", "fewer"),
    [
        ({"use_liger_kernel": True}, True),
        ({"torch_compile": True}, True),
        ({"use_liger_kernel": False}, False),
        ({"torch_compile": False}, False),
    ],
)
def test_fused_or_compiled_loss_keeps_fewer_logits(arguments: dict[str, Any], fewer: bool) -> None:
    plain = world()
    training = replace(plain.training or TrainingFacts(), arguments=arguments)
    config = usual_config(plain, Choice(stage=2))
    logits = activations_of(config, replace(plain, training=training)).logits_backward
    assert (logits < activations_of(config, plain).logits_backward) is fewer


@pytest.mark.parametrize(
    ("host_gib", "nodes", "device", "stage", "is_reported"),
    [
        (100, 1, "cpu", 2, True),  # 16 bytes for each of 6.74e9 parameters: 100.4 GiB
        (101, 1, "cpu", 2, False),
        (50, 2, "cpu", 2, True),
        (51, 2, "cpu", 2, False),
        (1, 1, "none", 2, False),
        (1, 1, "nvme", 3, False),
        (1, 1, "cpu", 0, False),
    ],
)
def test_host_memory_shortfall_is_given_in_gib(
    host_gib: int, nodes: int, device: str, stage: int, is_reported: bool
) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "offload_optimizer": {"device": device}},
    }
    facts = world(host_memory=f"{host_gib}GiB", nodes=nodes)
    stops = {found.code for found in dsconfig.validate(config, facts).errors}
    assert ("DSC502" in stops) is is_reported


def test_frozen_weights_are_on_disk_too() -> None:
    facts = world(lora_rank=16)
    moved = Choice(stage=3, optimizer=Tier.DEVICE, parameters=Tier.NVME)
    config = usual_config(facts, moved)
    assert facts.model is not None and config.zero.offload_param is not None
    nothing_kept = replace(config.zero.offload_param, max_in_cpu=0)
    config = replace(config, zero=replace(config.zero, offload_param=nothing_kept))
    on_disk = sizes(estimate_option(config, facts, runtime="dsengine"), "nvme")
    assert on_disk["weights"] > 2 * facts.model.parameters / RANKS


def test_checkpointing_with_a_policy_is_selective() -> None:
    arguments = {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"context_fn": "policy"},
    }
    facts = world(training_args=arguments)
    config = usual_config(facts, Choice(stage=2))
    assert recompute_of(config, facts) is Recompute.SELECTIVE
    assert recompute_of(config, world(training_args={"gradient_checkpointing": True})) is (
        Recompute.FULL
    )
