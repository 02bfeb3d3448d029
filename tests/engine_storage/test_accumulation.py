"""Gradients are added to fp32 sums in chunks, rounded once, without large temporaries."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from dsengine.tiers import accumulation
from dsengine.tiers.accumulation import accumulate

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize("rounding", [FP32, BF16, FP16])
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_sums_are_rounded_after_every_addition(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, rounding: torch.dtype
) -> None:
    monkeypatch.setattr(accumulation, "CHUNK_ELEMENTS", 7)
    generator = torch.Generator().manual_seed(0)
    total, expected = torch.full((20, 5), 9.0), torch.zeros(20, 5)
    for step in range(4):
        gradient = torch.randn(5, 20, generator=generator).to(dtype).T  # not contiguous
        accumulate(total, gradient, rounding, is_first=step == 0)
        expected = (expected + gradient.float()).to(rounding).float()
        assert torch.equal(total, expected)


@pytest.mark.parametrize("rounding", [FP32, BF16])
def test_temporaries_are_smaller_than_a_gradient(rounding: torch.dtype) -> None:
    total, gradient = torch.zeros(2**21), torch.ones(2**21, dtype=BF16)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        accumulate(total, gradient, rounding, is_first=True)
        accumulate(total, gradient, rounding, is_first=False)
    largest = max(event.cpu_memory_usage for event in profiled.events() or ())
    assert largest < gradient.nbytes / 2
