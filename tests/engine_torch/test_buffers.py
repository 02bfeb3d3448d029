"""Dtypes of buffers in 16-bit and in fp32 training."""

import pytest
import torch
from torch import nn

from dsengine.optimizers.precision import Policy
from dsengine.sharding.buffers import cast_buffers

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("compute", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)],
)
def test_buffers_are_kept_in_fp32_in_16_bit_training_only(
    compute: torch.dtype, expected: torch.dtype
) -> None:
    """DeepSpeed ignores ``keep_in_fp32_modules`` in fp32 training."""
    module = nn.BatchNorm1d(4)
    policy = Policy(
        compute, compute, compute, None, buffers=torch.bfloat16, fp32_buffers=("running_*",)
    )
    cast_buffers(module, policy)
    assert module.running_mean is not None
    assert module.running_mean.dtype is expected
