"""Optimizers outside of torch's get plain shards if elementwise, and a clear error if unusable."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

from dsengine.optimizers.binding import Binding

pytestmark = pytest.mark.engine


class Own(Optimizer):
    """Momentum as a kernel would compute it: in memory, which a DTensor does not have."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.stepped: list[type[Tensor]] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.stepped.append(type(parameter))
                state = self.state[parameter]
                state["sum"] = state.get("sum", 0.0) + self.update(parameter.grad, state)
                parameter -= group["lr"] * state["sum"]

    def update(self, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        return gradient


class Normed(Own):
    def update(self, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        return gradient / gradient.norm()


class Blockwise(Own):
    """Has a scale per block of a state, like 8-bit classes."""

    def update(self, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        state["scales"] = torch.ones(2 + gradient.numel() // 256)
        return gradient


class KernelNormed(Normed):
    __module__ = "bitsandbytes.optim.adamw"


class KernelBlockwise(Blockwise):
    __module__ = "apex.optimizers"


class Kernel(Own):
    __module__ = "apex.optimizers"


@pytest.fixture
def master() -> Iterator[nn.Parameter]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    shard = DTensor.from_local(torch.ones(3, 2), init_device_mesh("cpu", (2,)))
    yield nn.Parameter(shard)
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", [Own, Kernel])
def test_elementwise_class_steps_plain_shards(master: nn.Parameter, kind: type[Own]) -> None:
    optimizer = kind([master])
    binding = Binding(optimizer, {"weight": master})
    assert not optimizer.stepped and not optimizer.state
    binding.shards["weight"].grad = torch.ones(3, 2)
    binding.step()
    assert optimizer.stepped == [nn.Parameter]
    assert torch.equal(binding.shards["weight"].detach(), torch.full((3, 2), 0.9))
    with binding.as_sharded():
        assert isinstance(optimizer.state[master]["sum"], DTensor)


@pytest.mark.parametrize("kind", [Normed, Blockwise])
def test_other_class_keeps_dtensors(master: nn.Parameter, kind: type[Own]) -> None:
    assert not Binding(kind([master]), {"weight": master}).uses_local_shards


@pytest.mark.parametrize("kind", [KernelNormed, KernelBlockwise])
def test_kernel_that_is_not_elementwise_is_refused(master: nn.Parameter, kind: type[Own]) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__}: .* cannot update sharded parameters"):
        Binding(kind([master]), {"weight": master})
    weight = nn.Parameter(torch.ones(2))
    Binding(kind([weight]), {"weight": weight})
