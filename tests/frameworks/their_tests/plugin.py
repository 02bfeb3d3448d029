"""A plugin of pytest for the frameworks' tests of DeepSpeed, on machines without a card.

``DEEPSPEED_TESTS`` names the package that is their ``deepspeed``.
"""

import os
from typing import Any

import pytest

if os.environ["DEEPSPEED_TESTS"] == "dsengine":
    import dsengine.as_deepspeed  # noqa: F401
else:
    from frameworks.real import on_the_host, show_scalars_as_bytes

    on_the_host()
    show_scalars_as_bytes()

import accelerate.test_utils.testing
import transformers.testing_utils
import transformers.training_args

from deepspeed_tests.alone import known, name_of, pytest_collectreport, pytest_runtest_protocol

__all__ = ["pytest_collectreport", "pytest_runtest_protocol"]

OF_A_CARD = ("require_non_cpu", "require_cuda", "require_torch_accelerator", "require_torch_gpu")
"""What their tests ask for because DeepSpeed is for cards; it trains on the CPU as well."""


def _as_it_is(test: Any) -> Any:
    return test


for module in (accelerate.test_utils.testing, transformers.testing_utils):
    for name in OF_A_CARD:
        if hasattr(module, name):
            setattr(module, name, _as_it_is)
transformers.training_args.is_torch_bf16_gpu_available = lambda: True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    done = known()
    items[:] = [item for item in items if name_of(item.nodeid) not in done]
