"""pytest plugin for the frameworks' tests of DeepSpeed, on machines without a GPU.

``DEEPSPEED_TESTS`` is the package to use as ``deepspeed``.
"""

import os
from typing import Any

import pytest

if os.environ["DEEPSPEED_TESTS"] == "dsengine":
    import dsengine.as_deepspeed  # noqa: F401
else:
    from frameworks.real import import_deepspeed, show_scalars_as_bytes

    import_deepspeed()
    show_scalars_as_bytes()

import accelerate.test_utils.testing
import transformers.testing_utils
import transformers.training_args

from deepspeed_tests.alone import known, name_of, pytest_collectreport, pytest_runtest_protocol

__all__ = ["pytest_collectreport", "pytest_runtest_protocol"]

GPU_DECORATORS = (
    "require_non_cpu",
    "require_cuda",
    "require_torch_accelerator",
    "require_torch_gpu",
)
"""Decorators that skip tests without a GPU, although they also pass on the CPU."""


def _unchanged(test: Any) -> Any:
    return test


for module in (accelerate.test_utils.testing, transformers.testing_utils):
    for name in GPU_DECORATORS:
        if hasattr(module, name):
            setattr(module, name, _unchanged)
transformers.training_args.is_torch_bf16_gpu_available = lambda: True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    done = known()
    items[:] = [item for item in items if name_of(item.nodeid) not in done]
