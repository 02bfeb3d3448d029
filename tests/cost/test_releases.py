"""``--deepspeed-version`` matters where allocations differ between releases."""

from typing import Any

import pytest

import dsconfig
from dsconfig.cost.deepspeed.releases import RUN, how_known, overflow_bytes
from dsconfig.facts.gathering import gather
from dsconfig.schema.version import Version

LARGEST_MICRO_BATCH = 50257 * 768
"""Elements of GPT-2's embedding."""


def device(version: str, *, stage: int = 2, half: str = "fp16", **more: Any) -> Any:
    facts = gather(gpus=8, model="gpt2")
    zero = {"stage": stage, "contiguous_gradients": True, **more.pop("zero", {})}
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero, **more}
    config |= {"optimizer": {"type": "Adam"}, half: {"enabled": True}}
    resolution = dsconfig.resolve(config, facts, runtime="deepspeed", version=version)
    return dsconfig.estimate(resolution, facts).options[0]


def bytes_of(option: Any, name: str) -> int:
    return max((part.bytes for part in option.device.components if part.name == name), default=0)


@pytest.mark.parametrize(("version", "factor"), [("0.3.16", 4.5), ("0.4.0", 1), ("0.19.8", 1)])
def test_reduce_bucket_is_4_5_times_its_key_before_0_4(version: str, factor: float) -> None:
    zero = {"overlap_comm": True, "reduce_bucket_size": 500_000_000}
    option = device(version, zero=zero)
    both = bytes_of(option, "reduce bucket") + bytes_of(option, "second reduce bucket")
    assert both == int(factor * 2e9)  # 9 GB in the days of the rule
    assert bytes_of(device(version, stage=1, zero=zero), "reduce bucket") == 1e9


@pytest.mark.parametrize(
    ("version", "half", "bytes_per_element"),
    [
        ("0.12.6", "fp16", 4),
        ("0.14.5", "fp16", 11),
        ("0.14.5", "bf16", 0),
        ("0.19.5", "bf16", 11),
        ("0.19.6", "fp16", 0),
    ],
)
def test_overflow_test_copies_the_largest_gradient(
    version: str, half: str, bytes_per_element: int
) -> None:
    facts = gather(gpus=8, model="gpt2")
    config = {"zero_optimization": {"stage": 2}, half: {"enabled": True}}
    config |= {"train_micro_batch_size_per_gpu": 1}
    resolution = dsconfig.resolve(config, facts, runtime="deepspeed", version=version)
    assert resolution.effective is not None
    numerics = resolution.effective.numerics
    assert overflow_bytes(Version.parse(version), numerics) == bytes_per_element


def test_overflow_test_can_be_the_peak_of_the_step() -> None:
    step = {v: device(v, zero={"reduce_bucket_size": 10**6}).device for v in ("0.14.5", "0.19.8")}
    more = step["0.14.5"].phase_bytes["step"] - step["0.19.8"].phase_bytes["step"]
    assert 0 < more <= 11 * LARGEST_MICRO_BATCH


def test_pin_memory_is_the_default_since_0_19_5() -> None:
    zero = {"offload_optimizer": {"device": "cpu"}}
    assert (
        device("0.19.4", zero=zero).host.pinned_bytes
        < device("0.19.5", zero=zero).host.pinned_bytes
    )


def test_unmeasured_release_is_reported() -> None:
    assert not how_known(RUN[-1])
    assert "newer" in how_known(Version(0, 20, 0))
    assert "before and after" in how_known(Version(0, 17, 6))
    assert "from its source" in how_known(Version(0, 7, 7))
    assert "0.6.0" in how_known(Version(0, 3, 16))
