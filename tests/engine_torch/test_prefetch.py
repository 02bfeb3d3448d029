"""Units prefetch each other as planned, and each gather is started once."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dsengine.sharding.units import set_prefetch

pytestmark = pytest.mark.torch


class Unit(nn.Module, FSDPModule):
    """Records what is set; made without ``fully_shard``."""

    def __new__(cls) -> "Unit":
        return cast("Unit", object.__new__(cls))

    def __init__(self) -> None:
        super().__init__()
        self.forward_targets: list[FSDPModule] = []
        self.backward_targets: list[FSDPModule] = []

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        self.forward_targets = modules

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        self.backward_targets = modules


def planned(*prefetch: Sequence[int], kept: Sequence[int] = ()) -> Any:
    return [
        SimpleNamespace(prefetch=ahead, gather=index not in kept)
        for index, ahead in enumerate(prefetch)
    ]


def test_each_gather_is_started_once_and_as_early_as_planned() -> None:
    units: list[Any] = [Unit() for _ in range(5)]
    set_prefetch(planned((1, 2), (2, 3), (3, 4), (4,), ()), units)
    first, second, third, fourth, last = units
    assert first.forward_targets == [second, third]
    assert second.forward_targets == [fourth]
    assert third.forward_targets == [last]
    assert fourth.forward_targets == last.forward_targets == []
    assert last.backward_targets == [fourth, third]
    assert fourth.backward_targets == [second]
    assert third.backward_targets == [first]
    assert second.backward_targets == first.backward_targets == []


def test_units_that_stay_gathered_and_missing_ones_are_no_targets() -> None:
    units: list[Any] = [Unit(), Unit(), None, Unit()]
    set_prefetch(planned((1, 2, 3), (2, 3), (3,), (), kept=(1,)), units)
    assert units[0].forward_targets == [units[3]]
    assert units[1].forward_targets == []
    assert units[3].backward_targets == [units[0]]
