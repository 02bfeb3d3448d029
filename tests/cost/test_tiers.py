"""Where offloading puts bytes, counted manually: per parameter of a 7B model on 8 GPUs."""

from typing import Any

import pytest

import dsconfig
from dsconfig.cost.estimate import TierMemory
from dsconfig.cost.estimator import estimate_option
from dsconfig.cost.host_memory_fixes import ways_to_fit
from dsconfig.facts import gather
from dsconfig.runtimes.deepspeed import deepspeed
from narrowing import not_none

NVME = {"device": "nvme", "nvme_path": "/local"}
CPU = {"device": "cpu"}
EMBEDDING = 32_000 * 4_096
GIB = 2**30


def option(zero: dict[str, Any], **more: Any) -> Any:
    facts = gather(
        **{
            "gpus": 8,
            "model": "llama-2-7b",
            "device": "a100-80gb",
            "micro_batch": 1,
            "seq_len": 2048,
            **more,
        }
    )
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": zero,
    }
    resolution = dsconfig.resolve(config, facts, runtime=deepspeed())
    return dsconfig.estimate(resolution, facts).options[0]


def bytes_of(memory: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in memory.components:
        found[part.name] = found.get(part.name, 0) + part.bytes
    return found


@pytest.fixture(scope="module")
def parameters() -> int:
    model = gather(model="llama-2-7b").model
    assert model is not None
    return model.parameters


OPTIMIZER = {"master weights": 4, "optimizer state": 8, "gradients": 4}


@pytest.mark.parametrize(
    ("zero", "on_disk"),
    [
        ({"stage": 3, "offload_optimizer": NVME}, OPTIMIZER),
        ({"stage": 3, "offload_param": NVME}, {"weights": 2}),
        (
            {"stage": 3, "offload_optimizer": NVME, "offload_param": NVME},
            {**OPTIMIZER, "weights": 2},
        ),
        ({"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}, {}),
    ],
)
def test_bytes_on_nvme(parameters: int, zero: dict[str, Any], on_disk: dict[str, int]) -> None:
    found = bytes_of(option(zero).nvme)
    assert {name: round(size / parameters, 3) for name, size in found.items()} == on_disk


def test_sub_groups_below_a_mebibyte_stay_in_memory(parameters: int) -> None:
    """262,144 fp32 elements are a MiB: one less, and only the weights would leave."""
    swapped = option({"stage": 3, "offload_optimizer": NVME, "sub_group_size": 2**18})
    kept = option({"stage": 3, "offload_optimizer": NVME, "sub_group_size": 2**18 - 1})
    assert swapped.nvme.bytes == pytest.approx(16 * parameters, rel=1e-6)
    assert kept.nvme.bytes == 0
    assert bytes_of(kept.host)["master weights"] == pytest.approx(4 * parameters, rel=1e-6)
    assert bytes_of(kept.host)["optimizer state"] == pytest.approx(8 * parameters, rel=1e-6)
    assert "master weights" not in bytes_of(swapped.host)


def test_buffers_before_nvme() -> None:
    """buffer_count sub-groups in fp32 on each of 8 ranks; twice as many where they overlap."""
    zero = {"stage": 3, "sub_group_size": 10_000_000}
    one = option({**zero, "offload_optimizer": {**NVME, "buffer_count": 5}})
    two = option({**zero, "offload_optimizer": {**NVME, "buffer_count": 5, "pipeline_read": True}})
    assert bytes_of(one.host)["swap buffers"] == 8 * 5 * 10_000_000 * 4
    assert bytes_of(two.host)["swap buffers"] == 2 * 8 * 5 * 10_000_000 * 4


@pytest.mark.parametrize("stage", [1, 2])
def test_scratch_on_the_device_holds_the_largest_tensor(stage: int) -> None:
    found = bytes_of(option({"stage": stage, "offload_optimizer": CPU}).device)
    assert found["offload scratch"] == EMBEDDING * 2


def test_ratio_keeps_part_of_the_states_on_the_device(parameters: int) -> None:
    found = bytes_of(option({"stage": 3, "offload_optimizer": {**CPU, "ratio": 0.5}}).host)
    assert found["master weights"] == pytest.approx(2 * parameters, rel=1e-6)
    assert found["optimizer state"] == pytest.approx(4 * parameters, rel=1e-6)


def test_logits_are_counted_unless_the_loss_is_fused() -> None:
    def peak(arguments: dict[str, Any]) -> int:
        given = {"per_device_train_batch_size": 1, **arguments}
        return option({"stage": 3}, training_args=given).device.peak_bytes

    silent, fused = peak({}), peak({"use_liger_kernel": True})
    assert silent == peak({"use_liger_kernel": False})
    # fp32 logits of 2048 tokens over 32,000 words are 250 MiB, their gradients as much.
    assert silent - fused > 2048 * 32_000 * 4


@pytest.mark.parametrize(
    ("stage", "sub_group", "locked"),
    [
        # 4e9 / 4 ranks: masters, gradient and 16-bit staging, each one tensor.
        (2, 1_000_000_000, (4 * GIB, 4 * GIB, 2 * GIB)),
        # No masters; the gradient in one tensor for each sub-group.
        (3, 1_000_000_000, (4 * GIB, 2 * GIB)),
        (3, 100_000_000, (10 * GIB // 2, 2 * GIB)),
    ],
)
def test_page_locked_tensors_take_the_next_power_of_two(
    stage: int, sub_group: int, locked: tuple[int, ...]
) -> None:
    """As torch's allocator of such memory does (PowerOf2Ceil in its CachingHostAllocator)."""
    zero = {
        "stage": stage,
        "sub_group_size": sub_group,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
    }
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    facts = gather(gpus=4, params=4_000_000_000, device="a100-80gb")
    resolution = dsconfig.resolve({**config, "zero_optimization": zero}, facts, runtime="deepspeed")
    host = dsconfig.estimate(resolution, facts).options[0].host
    assert host.pinned_bytes == pytest.approx(4 * sum(locked), rel=0.001)
    raw = sum(part.bytes for part in host.components if part.pinned)
    (rounding,) = (part for part in host.components if part.name.startswith("rounding"))
    assert rounding.bytes == host.rounding_bytes == host.pinned_bytes - raw
    assert host.peak_bytes >= host.bytes + rounding.bytes


@pytest.mark.parametrize("model", ["qwen2.5-32b", "llama-2-7b"])
def test_page_locked_shards_of_zero_init_stay_in_host_memory(model: str) -> None:
    """A 32B model was killed at 744 GB, where all other components need 626 GiB."""

    def host(pins: bool, **arguments: object) -> TierMemory:
        offload = {"device": "cpu", "pin_memory": pins}
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu"},
                "offload_param": offload,
            },
        }
        facts = gather(model=model, gpus=8, training_args=arguments)
        effective = not_none(dsconfig.resolve(config, facts, runtime="deepspeed").derive())
        return estimate_option(effective, facts, runtime="deepspeed").host

    (shards,) = (each for each in host(True).components if each.name == "shards as built")
    tree = not_none(gather(model=model).model)
    each = [-(-tensor.elements // 8) * 2 for tensor in not_none(tree.root).unique_parameters()]
    rounded = sum(1 << (size - 1).bit_length() for size in each if size * 8 > 2 * 100_000)
    assert abs(shards.bytes - 8 * rounded) < 8 * 2**20
    assert host(True).peak_bytes - host(False).peak_bytes == shards.bytes
    # A model that was built without zero.Init is partitioned in the same way.
    assert shards in host(True, zero_init=False).components


def test_pageable_parameters_are_a_way_to_fit() -> None:
    offload = {"device": "cpu", "pin_memory": True}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": offload},
    }
    facts = gather(model="qwen2.5-32b", gpus=8, host_memory="672GiB")
    effective = not_none(dsconfig.resolve(config, facts, runtime="deepspeed").derive())
    ways = ways_to_fit(effective, facts, 672 * 2**30)
    assert any(way.startswith("set offload_param.pin_memory to false") for way in ways)
