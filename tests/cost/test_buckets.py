"""The 4.5x rule: a documented bound, never a part of the estimate."""

from dataclasses import replace

import pytest

from dsconfig.cost.choices import USUAL, usual_config
from dsconfig.cost.estimator import bucket_rule_bytes, estimate_option
from dsconfig.cost.usual import table
from dsconfig.facts.gathering import gather
from dsconfig.runtimes.effective import Zero


@pytest.mark.parametrize(
    ("size", "expected"), [(500_000_000, 9_000_000_000), (200_000_000, 3_600_000_000)]
)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bucket_rule_equals_published_sizes(stage: int, size: int, expected: int) -> None:
    zero = Zero(stage=stage, overlap_comm=True, reduce_bucket_size=size, allgather_bucket_size=size)
    assert bucket_rule_bytes(zero) == expected


def test_bucket_rule_factor_is_one_without_overlap() -> None:
    assert bucket_rule_bytes(Zero(stage=2)) == 2_000_000_000


def test_stage_0_has_no_buckets() -> None:
    assert bucket_rule_bytes(Zero(stage=0, overlap_comm=True)) == 0


def test_missing_keys_use_defaults() -> None:
    """13e9 parameters on 8 GPUs without further flags: 9.00 GB at every stage above 0."""
    found = table(gather(gpus=8, params="13e9"))
    assert {option.bucket_rule_bytes for option in found.options if option.stage} == {9_000_000_000}


@pytest.mark.parametrize("runtime", ["dsengine", "deepspeed"])
def test_allgather_bucket_is_not_in_the_peak(runtime: str) -> None:
    facts = gather(gpus=8, params="13e9")
    for choice in USUAL:
        config = usual_config(facts, choice)
        other = replace(config, zero=replace(config.zero, allgather_bucket_size=10**6))
        peaks = [
            estimate_option(each, facts, runtime=runtime).device.peak_bytes
            for each in (config, other)
        ]
        assert peaks[0] == peaks[1]


def test_overlap_allocates_a_second_bucket() -> None:
    facts = gather(gpus=8, params="13e9")
    config = usual_config(facts, USUAL[3])
    plain = replace(config, zero=replace(config.zero, overlap_comm=False))
    peaks = [estimate_option(each, facts, runtime="deepspeed").device for each in (config, plain)]
    step = "second reduce bucket"
    assert any(part.name == step and part.bytes == 10**9 for part in peaks[0].components)
    assert all(part.name != step for part in peaks[1].components)
