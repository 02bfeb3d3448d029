"""Hooks of ``fully_shard`` build, inspect and record nothing in a usual step."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from dsengine.torch_private.hook_costs import reduce_hook_costs
from dsengine.torch_private.units import units_of, units_without
from narrowing import of_type

pytestmark = pytest.mark.torch
BLOCKS = 3


class Block(nn.Module):
    """Gets tensors and scalars; also nested ones, which have to be cast."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dtypes: list[torch.dtype] = []

    def forward(self, x: Tensor, scale: float = 1.0, more: tuple[Tensor, ...] = ()) -> Tensor:
        self.dtypes += [each.dtype for each in (x, *more)]
        return self.linear(sum(more, x)) * scale


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        x = self.blocks[1](x, scale=2.0)
        return self.blocks[2](x, more=(x.float(),)).sum()


@pytest.fixture
def model() -> Iterator[Blocks]:
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    reduce_hook_costs()
    built = Blocks()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in built.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(built, mp_policy=policy)
    step(built)
    yield built
    dist.destroy_process_group()


def step(model: nn.Module) -> None:
    model(torch.ones(2, 4)).backward()


def test_a_step_builds_no_functions_and_inspects_none(
    model: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch._dynamo, "disable", lambda *_, **__: calls.append("disable"))
    monkeypatch.setattr(inspect, "signature", lambda *_, **__: calls.append("signature"))
    step(model)
    assert calls == [], "fully_shard has a new hook, or another name for one"


def test_ranges_of_units_are_recorded_for_a_profiler_only(
    model: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.profiler.profile(acc_events=True) as profiler:  # else torch 2.11 warns
        step(model)
    ranges = [event.key for event in profiler.key_averages()]
    assert sum(name.startswith("FSDP::pre_forward") for name in ranges) == BLOCKS
    recorded: list[str] = []

    class Recorded(torch.profiler.record_function):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            recorded.append(name)

    monkeypatch.setattr(torch.profiler, "record_function", Recorded)
    step(model)
    once = {"FSDP::root_pre_forward", "FSDP::root_post_backward_callback"}
    assert {*recorded} - once == {"FSDP::cast_forward_inputs"}


def test_inputs_are_cast(model: Blocks) -> None:
    first, _, last = (of_type(block, Block) for block in model.blocks)
    assert {*first.dtypes} == {torch.bfloat16}, "fp32 inputs of a unit"
    assert {*last.dtypes} == {torch.bfloat16}, "nested fp32 inputs of a unit"


def test_gradients_are_complete_shards(model: Blocks) -> None:
    for parameter in model.parameters():
        gradient = of_type(parameter.grad, DTensor)
        assert gradient.shape == parameter.shape
        assert gradient.full_tensor().isfinite().all()


def test_a_root_without_parameters_is_not_a_unit_to_watch(model: Blocks) -> None:
    """Stages 1 and 2, which keep all units gathered, watch no forward for direct use."""
    units = units_of(model)
    assert units_without(units, units[1:]) == []
    assert units_without(units, units[2:]) == [model.blocks[0]]
