"""Modules load without garbage collection, whose state is restored afterwards."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dsengine.loading import gc_disabled

pytestmark = pytest.mark.torch


class Ring:
    """A reference cycle."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Ring.alive += 1

    def __del__(self) -> None:
        Ring.alive -= 1


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.unfreeze()  # what earlier tests have frozen
    gc.collect()
    Ring.alive = 0
    yield
    gc.unfreeze()
    gc.enable()


def test_no_garbage_collection_inside() -> None:
    with gc_disabled():
        assert not gc.isenabled()
        for _ in range(2000):
            Ring()
        assert Ring.alive == 2000
    assert gc.isenabled()
    gc.collect()
    assert Ring.alive == 0


def test_objects_from_inside_are_in_the_old_generation() -> None:
    with gc_disabled():
        Ring()
    gc.collect(1)
    assert Ring.alive == 1


def test_disabled_or_frozen_gc_is_kept() -> None:
    gc.disable()
    gc.freeze()
    frozen = gc.get_freeze_count()
    with gc_disabled():
        pass
    assert not gc.isenabled()
    assert gc.get_freeze_count() == frozen


@pytest.mark.long  # make test-torch runs it with each release
def test_torch_optimizer_imports_dynamo() -> None:
    """Otherwise ``load_compiler`` slows down every start for nothing."""
    code = (
        "import sys, torch\n"
        "assert 'torch._dynamo' not in sys.modules, 'import torch already imports it'\n"
        "torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]).zero_grad()\n"
        "assert 'torch._dynamo' in sys.modules, 'an optimizer no longer imports it'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
