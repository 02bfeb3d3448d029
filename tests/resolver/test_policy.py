"""Policy choices and their reasons: precision, buckets, stage, optimizer, schedule."""

import re

import pytest

import dsconfig
from dsconfig.facts import gather
from narrowing import not_none

A = "auto"
BOTH = {"fp16": {"enabled": A}, "bf16": {"enabled": A}}


def resolved(config, **flags):
    return dsconfig.resolve({"train_micro_batch_size_per_gpu": 1, **config}, gather(**flags))


def switches(resolution):
    return {dtype: resolution.config.get(dtype, {}).get("enabled") for dtype in ("fp16", "bf16")}


@pytest.mark.parametrize(
    ("config", "flags", "fp16", "bf16"),
    [
        (BOTH, {"device": "a100-80gb"}, False, True),
        (BOTH, {"device": "v100-16gb"}, True, False),
        (BOTH, {"device": "v100-16gb", "precision": "fp32"}, False, False),
        (BOTH, {"device": "a100-80gb", "precision": "fp16"}, True, False),
        ({"bf16": {"enabled": A}}, {"device": "v100-16gb"}, True, False),
        ({"fp16": {"enabled": A}}, {"device": "h100"}, False, True),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": A}}, {"device": "t4"}, False, False),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": A}}, {"device": "h100"}, True, False),
    ],
)
def test_at_most_one_precision_preferring_bf16(config, flags, fp16, bf16):
    resolution = resolved(config, **flags)
    assert switches(resolution) == {"fp16": fp16, "bf16": bf16}


@pytest.mark.parametrize(
    ("config", "device", "lacks"),
    [(BOTH, "t4", True), ({"fp16": {"enabled": A}, "bf16": {"enabled": False}}, "h100", False)],
)
def test_fp16_reason_names_missing_bf16_support(config, device, lacks):
    ledger = resolved(config, device=device).ledger
    (entry,) = (each for each in ledger if each.pointer == "/fp16/enabled")
    assert ("does not support bf16" in entry.rule) is lacks


def test_bf16_model_in_fp16_is_noted():
    resolution = resolved(BOTH, device="v100-16gb", model="llama-2-7b", gpus=1)
    assert "DSC350" in {found.code for found in resolution.diagnostics}
    assert resolution.ok


def test_precision_requires_device():
    (found,) = resolved(BOTH).diagnostics
    help_ = not_none(found.help)
    assert "device=" in help_ and "precision=" in help_


BUCKETS = {
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": A,
        "allgather_bucket_size": A,
        "stage3_prefetch_bucket_size": A,
        "stage3_param_persistence_threshold": A,
    }
}


def test_bucket_sizes_follow_the_hidden_size():
    zero = resolved(BUCKETS, model="llama-2-7b", device="a100-80gb").config["zero_optimization"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == 4096 * 4096
    assert zero["stage3_prefetch_bucket_size"] == 9 * 4096 * 4096 // 10
    assert zero["stage3_param_persistence_threshold"] == 10 * 4096


@pytest.mark.parametrize(
    ("memory", "elements"), [("8GB", 200_000_000), ("20GB", 500_000_000), ("80GB", 500_000_000)]
)
def test_bucket_rule_caps_buckets_by_gpu(memory, elements):
    zero = resolved(BUCKETS, device_memory=memory).config["zero_optimization"]
    assert zero["reduce_bucket_size"] == elements
    rule_bytes = (zero["reduce_bucket_size"] + zero["allgather_bucket_size"]) * 2 * 4.5
    assert rule_bytes == {"8GB": 3.6e9, "20GB": 9e9, "80GB": 9e9}[memory]


def test_buckets_without_gpu_follow_model():
    zero = resolved(BUCKETS, model="llama-2-7b").config["zero_optimization"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == 4096 * 4096
    zero = resolved(BUCKETS).config["zero_optimization"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == 500_000_000


def test_buckets_without_model_use_defaults():
    assert resolved(BUCKETS).config["zero_optimization"] == {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": 500_000_000,
        "allgather_bucket_size": 500_000_000,
        "stage3_prefetch_bucket_size": 50_000_000,
        "stage3_param_persistence_threshold": 100_000,
    }


@pytest.mark.parametrize(
    ("stage", "degrees", "reason"),
    [
        (3, {"sequence_parallel": 8}, "overlaps communication with backward"),
        (3, {"tensor_parallel": 8}, "no communication to overlap: no other rank has these"),
        (0, {}, "no communication to overlap: no sharding at stage 0"),
    ],
)
def test_reason_for_overlap_follows_from_the_ranks_that_average(stage, degrees, reason):
    resolution = resolved(
        {"zero_optimization": {"stage": stage, "overlap_comm": A}}, gpus=8, **degrees
    )
    rules = {entry.pointer: entry.rule for entry in resolution.ledger}
    assert rules["/zero_optimization/overlap_comm"].startswith(reason)


@pytest.mark.parametrize(
    ("device", "elements"), [("nvme", 100_000_000), ("cpu", 1_000_000_000), ("none", 1_000_000_000)]
)
def test_sub_group_is_smaller_with_nvme(device, elements):
    block = {"stage": 3, "offload_optimizer": {"device": device, "nvme_path": "/nvme"}}
    resolution = resolved({"zero_optimization": {**block, "sub_group_size": A}})
    assert resolution.config["zero_optimization"]["sub_group_size"] == elements


@pytest.mark.parametrize(("sub_group", "ok"), [(A, True), (100_000_000, True), (10**9, False)])
def test_sub_group_is_checked_against_host_memory(sub_group, ok):
    """Four fp32 buffers of 1e9 elements on each of 8 ranks are 128 GB; of 1e8, 17 with rounding."""
    block = {
        "stage": A,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"},
        "sub_group_size": sub_group,
    }
    adam = {"type": "AdamW", "params": {"lr": 1e-4}}
    config = {"zero_optimization": block, "bf16": {"enabled": True}, "optimizer": adam}
    node = {"gpus": 8, "device": "a100-80gb", "host_memory": "80GiB"}
    resolution = resolved(config, model="llama-2-7b", seq_len=2048, **node)
    assert resolution.ok is ok
    assert ok or [found.code for found in resolution.diagnostics] == ["DSC154"]


@pytest.mark.parametrize(("total", "warmup"), [(500, 50), (5, 1), (100_000, 1000), (None, 1000)])
def test_warmup_is_default_and_at_most_a_tenth(total, warmup):
    params = {"warmup_num_steps": A, "warmup_max_lr": 1e-3, "warmup_min_lr": 0}
    config = {"scheduler": {"type": "WarmupLR", "params": params}}
    resolution = resolved(config, total_steps=total)
    assert resolution.config["scheduler"]["params"]["warmup_num_steps"] == warmup


@pytest.mark.parametrize(("optimizer", "is_reported"), [("none", False), ("cpu", True)])
def test_host_memory_is_required_only_for_offload(optimizer, is_reported):
    block = {"stage": A, "offload_optimizer": {"device": optimizer}}
    adam = {"type": "AdamW", "params": {"lr": 1e-4}}
    config = {"zero_optimization": block, "bf16": {"enabled": True}, "optimizer": adam}
    node = {"gpus": 8, "device": "a100-80gb", "seq_len": 512}
    resolution = resolved(config, model="gpt2", **node)
    assert ("DSC153" in {finding.code for finding in resolution.diagnostics}) is is_reported


def test_cap_accounts_for_explicit_bucket():
    config = {"zero_optimization": {**BUCKETS["zero_optimization"]}}
    config["zero_optimization"]["allgather_bucket_size"] = 300_000_000
    zero = resolved(config, device_memory="8GB").config["zero_optimization"]
    assert zero["reduce_bucket_size"] == 100_000_000


ZERO_AUTO = {
    "train_micro_batch_size_per_gpu": 1,
    "activation_checkpointing": {},
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": A,
        "offload_optimizer": {"device": A},
        "offload_param": {"device": A},
    },
}


WORLDS = [
    ("gpt2", 1, "a100-80gb"),
    ("gpt2", 8, "a100-80gb"),
    ("llama-2-7b", 8, "a100-80gb"),
    ("llama-2-7b", 1, "v100-32gb"),
    ("llama-2-13b", 1, "v100-16gb"),
    ("llama-2-70b", 64, "h100"),
]


def zero_of(model, ranks, card):
    facts = {"model": model, "gpus": ranks, "device": card, "seq_len": 1024}
    resolution = resolved(ZERO_AUTO, **facts)
    zero = resolution.config["zero_optimization"]
    chosen = (zero["stage"], zero["offload_optimizer"]["device"], zero["offload_param"]["device"])
    return resolution, chosen


def test_ample_memory_needs_no_offload():
    assert zero_of("gpt2", 1, "a100-80gb")[1] == (0, "none", "none")
    # So small a model waits for the host, which has the least to do at stage 0.
    assert zero_of("gpt2", 8, "a100-80gb")[1] == (0, "none", "none")


def test_parameter_offload_is_last_resort():
    assert zero_of("llama-2-13b", 1, "v100-16gb")[1] == (3, "cpu", "cpu")
    assert zero_of("llama-2-70b", 64, "h100")[1] == (3, "none", "none")


def reserved(world, stage, optimizer="none", parameters="none"):
    """Bytes the allocator takes with stage and offload written down, for whoever needs more."""
    model, ranks, card = world
    # With DeepSpeed the script is what recomputes: the block alone does not.
    script = {"gradient_checkpointing": True}
    facts = gather(model=model, gpus=ranks, device=card, seq_len=1024, training_args=script)
    zero = {
        "stage": stage,
        "offload_optimizer": {"device": optimizer},
        "offload_param": {"device": parameters},
    }
    config = {**ZERO_AUTO, "zero_optimization": zero}
    if not not_none(facts.device).bf16:  # which DeepSpeed refuses there; fp16 has the same bytes
        del config["bf16"]
        config["fp16"] = {"enabled": True}
    return max(
        dsconfig.estimate(dsconfig.resolve(config, facts, runtime=program), facts)
        .options[0]
        .device.reserved_bytes
        for program in ("dsengine", "deepspeed")
    )


TURNED_DOWN = re.compile(r"stage (\d)(?: with (optimizer|optimizer and parameters) on cpu)?")


@pytest.mark.parametrize("world", WORLDS)
def test_choice_fits_and_faster_ones_do_not(world):
    resolution, chosen = zero_of(*world)
    entry = next(e for e in resolution.ledger if e.pointer == "/zero_optimization/stage")
    capacity = not_none(not_none(gather(device=world[2]).device).memory_bytes)
    assert reserved(world, *chosen) <= capacity
    assert bool(entry.inputs["too_big"]) == (world in CROWDED)
    for option in entry.inputs["too_big"]:
        stage, moved = not_none(TURNED_DOWN.fullmatch(option)).groups()
        offload = {None: (), "optimizer": ("cpu",)}.get(moved, ("cpu", "cpu"))
        assert reserved(world, int(stage), *offload) > 0.95 * capacity, option


CROWDED = WORLDS[3:6]
"""Where a faster choice does not fit."""


def test_offload_without_host_memory_reports_requirement():
    resolution, _ = zero_of("llama-2-13b", 1, "v100-16gb")
    (found,) = (found for found in resolution.diagnostics if found.code == "DSC153")
    assert "GiB of host memory" in found.message and "host_memory=" in not_none(found.help)


def test_nothing_fits_suggests_alternative():
    resolution = resolved(
        {**ZERO_AUTO, "zero_optimization": {"stage": A}},
        model="llama-2-70b",
        gpus=1,
        device="t4",
        seq_len=512,
    )
    (found,) = (found for found in resolution.diagnostics if found.code == "DSC154")
    assert "GiB" in found.message and found.help


def test_suggested_recomputation_resolves():
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": A, "offload_optimizer": {"device": A}},
    }
    run = {
        "model": "llama-2-13b",
        "gpus": 4,
        "device": "a100-40gb",
        "seq_len": 4096,
    }
    stuck = resolved(config, **run)
    (found,) = (found for found in stuck.diagnostics if found.code == "DSC154")
    assert 'recompute="selective"' in not_none(found.help)
    followed = resolved(config, **run, recompute="selective")
    assert followed.ok, followed.diagnostics


def test_optimizer_and_schedule_from_training_arguments():
    resolution = resolved(
        {"optimizer": A, "scheduler": A},
        learning_rate=2e-4,
        total_steps=1000,
        warmup_steps=0.03,
    )
    assert resolution.config["optimizer"] == {
        "type": "AdamW",
        "params": {"lr": 2e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    }
    assert resolution.config["scheduler"] == {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": 0,
            "warmup_max_lr": 2e-4,
            "warmup_num_steps": 30,
            "total_num_steps": 1000,
        },
    }


def test_all_missing_facts_are_reported_with_arguments():
    resolution = dsconfig.resolve(
        {
            "train_batch_size": A,
            "bf16": {"enabled": A},
            "optimizer": {"type": "AdamW", "params": {"lr": A}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": A}},
            "zero_optimization": {"stage": A},
        },
        gather(),
    )
    helps = " ".join(found.help or "" for found in resolution.diagnostics)
    for argument in ("gpus=", "device=", "learning_rate=", "total_steps=", "model= or params="):
        assert argument in helps


def test_native_auto_is_kept():
    config = {"data_types": {"keep_in_fp32_modules": A}}
    resolution = resolved(config, gpus=1)
    assert resolution.ok and resolution.config["data_types"] == {"keep_in_fp32_modules": A}


def test_suggestion_omits_existing_recomputation():
    config = {
        "train_batch_size": A,
        "train_micro_batch_size_per_gpu": A,
        "gradient_accumulation_steps": A,
        "activation_checkpointing": {},
    }
    run = {"model": "llama-3.2-1b", "device": "v100-16gb", "gpus": 1}
    stuck = resolved(config, global_batch=8, seq_len=128, **run)
    (found,) = (found for found in stuck.diagnostics if found.code == "DSC252")
    help_ = not_none(found.help)
    assert "would fit" in help_ and "together with" not in help_


@pytest.mark.parametrize("total", [None, 64])
def test_reason_of_the_micro_batch_names_a_global_batch_only_if_given(total):
    config = {"train_micro_batch_size_per_gpu": A, "train_batch_size": A}
    config |= {"gradient_accumulation_steps": A if total else 1, "zero_optimization": {"stage": 2}}
    flags = {"model": "gpt2", "gpus": 2, "device": "a100-80gb", "seq_len": 512}
    ledger = dsconfig.resolve(config, gather(global_batch=total, **flags)).ledger
    (entry,) = (each for each in ledger if each.pointer == "/train_micro_batch_size_per_gpu")
    assert entry.rule.startswith("largest that fits by the estimate")
    assert ("divides the global batch" in entry.rule) is bool(total)
