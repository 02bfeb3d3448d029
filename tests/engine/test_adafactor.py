"""Adafactor on sharded parameters equals torch's on full ones."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from dsengine.optimizers.adafactor import AdafactorBinding

SHAPES = {"matrix": (6, 4), "stack": (2, 3, 5), "vector": (7,), "scalar": (1,)}


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"d": 1.5},
        {"d": 4.0},
        {"eps": (0.3, 0.5)},
        {"eps": (None, 1e-3), "weight_decay": 0.0},
        {"weight_decay": 0.3},
        {"beta2_decay": -0.5},
        {"maximize": True},
        {"lr": 0.9},
    ],
    ids=str,
)
def test_steps_equal_torch(arguments: dict[str, Any]) -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (1,))
    options = {"lr": 0.3, "weight_decay": 0.01, **arguments}
    full = {name: nn.Parameter(torch.randn(shape)) for name, shape in SHAPES.items()}
    masters = {
        name: nn.Parameter(distribute_tensor(weight.detach().clone(), mesh, [Shard(0)]))
        for name, weight in full.items()
    }
    theirs = torch.optim.Adafactor(list(full.values()), **options)
    binding = AdafactorBinding(torch.optim.Adafactor(list(masters.values()), **options), masters)
    for step in range(4):
        for name, weight in full.items():
            # Small, then large: the update is clipped to ``d`` in some steps only.
            weight.grad = torch.randn(weight.shape) * 10.0 ** (step - 2)
            binding.shards[name].grad = weight.grad.clone()
        theirs.step()
        binding.step()
        for name, weight in full.items():
            part = binding.shards[name].detach().reshape(weight.shape)
            torch.testing.assert_close(part, weight.detach(), rtol=1e-5, atol=1e-6)
