"""Fixtures and settings for all tests."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from suite.environment import set_environment

set_environment()

import kernels  # noqa: E402
from training.ranks import Ranks, SharedRanks, hide_gpus  # noqa: E402

pytest_plugins = ["suite.plugin"]

hide_gpus()  # only ranks use them, if RANKS_DEVICE is set
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(kernels.extensions_folder()))
os.environ.setdefault("CXX", str(kernels.COMPILER))
# Neither profile measures time. `--hypothesis-profile random` tries other examples in each run.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", UNTIMED, derandomize=True, database=None)
settings.register_profile("random", UNTIMED)
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection."""
    gc.freeze()


@pytest.fixture(scope="session")
def ranks_of() -> Iterator[SharedRanks]:
    """Shared training processes by world size, on the CPU or RANKS_DEVICE."""
    shared = SharedRanks(os.environ.get("RANKS_DEVICE", "cpu"))
    yield shared
    shared.close()


@pytest.fixture
def ranks(ranks_of: SharedRanks) -> Ranks:
    """Two shared training processes."""
    return ranks_of(2)


@pytest.fixture
def host_ranks(ranks_of: SharedRanks) -> Ranks:
    """Two shared training processes on the CPU, whatever RANKS_DEVICE is."""
    return ranks_of(2, "cpu")
