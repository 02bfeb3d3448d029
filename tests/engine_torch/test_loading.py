"""Modules load without collections of garbage, and the collector is afterwards as it was."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dsengine.loading import gc_disabled

pytestmark = pytest.mark.torch


class Ring:
    """Garbage that only a collection finds."""

    living = 0

    def __init__(self) -> None:
        self.itself = self
        Ring.living += 1

    def __del__(self) -> None:
        Ring.living -= 1


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.collect()
    Ring.living = 0
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside_and_everything_can_be_afterwards() -> None:
    with gc_disabled():
        assert not gc.isenabled()
        for _ in range(2000):
            Ring()
        assert Ring.living == 2000
    assert gc.isenabled()
    gc.collect()
    assert Ring.living == 0


def test_what_was_made_inside_is_not_looked_at_by_the_next_small_collections() -> None:
    with gc_disabled():
        Ring()
    gc.collect(1)
    assert Ring.living == 1


def test_a_program_that_collects_nothing_or_has_frozen_its_objects_keeps_it_so() -> None:
    gc.disable()
    gc.freeze()
    frozen = gc.get_freeze_count()
    with gc_disabled():
        pass
    assert not gc.isenabled()
    assert gc.get_freeze_count() == frozen


def test_an_optimizer_of_torch_imports_what_is_imported_before_it() -> None:
    """If not, ``torch_private.load_compiler`` makes every start slower for nothing."""
    code = (
        "import sys, torch\n"
        "assert 'torch._dynamo' not in sys.modules, 'import torch brings it along already'\n"
        "torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]).zero_grad()\n"
        "assert 'torch._dynamo' in sys.modules, 'an optimizer does not bring it along any more'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
