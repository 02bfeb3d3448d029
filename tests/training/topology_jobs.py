"""Jobs on four ranks of which two have another part of the model."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

import dsengine
from dsconfig import Mesh
from dsengine.loop.data import TrainingLoader
from dsengine.loop.join import Join
from dsengine.loop.planning import plan_for
from dsengine.optimizers.gradients import describe_non_finite
from dsengine.optimizers.precision import policy
from dsengine.sharding import distribute
from dsengine.topology import Topology, rank, set_current
from training.jobs import config

HOST = torch.device("cpu")


class Part(nn.Module):
    """One part of a model, with a parameter that cannot be sharded, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.rand(()))
        self.offset: Tensor
        self.register_buffer("offset", torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        return ((self.layer(x) + self.offset) * self.scale).pow(2).sum()


def built(seed: int) -> Part:
    torch.manual_seed(seed)
    return Part()


def gradient_of_gathered_losses() -> float:
    """Gather a loss per pair of ranks, weight those by rank + 1, and return its gradient."""
    group = Topology(Mesh(shard=2, sequence=2), HOST.type).group("sequence")
    loss = torch.zeros((), requires_grad=True)
    losses = torch.stack(dist.nn.functional.all_gather(loss, group=group))  # pyright: ignore
    (losses * torch.arange(1.0, 3)).sum().mul(rank() + 1).backward()
    assert loss.grad is not None
    return loss.grad.item()


def reduced_within_a_part(stage: int, mesh: Mesh) -> None:
    """Compare weights and gradients of this rank's part with those of one process."""
    ranks = Topology(mesh, HOST.type)
    part, inputs = ranks.rank("tensor"), [torch.full((2, 4), 1.0 + n) for n in range(2)]
    # All ranks but the first of each part start with other weights.
    sample = ranks.rank("samples")
    model = built(part if sample == 0 else 100 + rank())
    plan = replace(plan_for(config(stage), model), mesh=mesh)
    sharding = distribute(model, plan, policy(plan.effective), ranks, HOST)
    loss = sharding.forward(inputs[sample])
    sharding.before_backward(loss, True)
    loss.backward()
    sharding.after_backward()

    expected = built(part)
    assert torch.equal(model.offset, expected.offset)
    for each in inputs:
        (expected(each) / 2).backward()
    gradients = {name: master.grad for name, master in sharding.masters.items()}
    for name, parameter in expected.named_parameters():
        assert torch.equal(full(sharding.masters[name]), parameter), name
        assert parameter.grad is not None
        torch.testing.assert_close(full(gradients[name]), parameter.grad, msg=name)
    sharding.detach()


def full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def groups_of_a_part() -> None:
    """Gather, count and report among the ranks with the same part."""
    ranks = Topology(Mesh(shard=2, tensor=2), HOST.type)
    part, sample = ranks.rank("tensor"), ranks.rank("samples")
    assert Join(None, ranks).count(sample == 0, True) == 1
    with pytest.raises(ValueError, match="1 of 2 ranks have no batch"):
        Join(None, ranks).count(sample == 0, False)
    infinite = {f"part {part}": torch.tensor(float("inf"))}
    found = describe_non_finite(infinite.items(), ranks.group("gradients"))
    assert found == f"the gradient of 'part {part}' is not finite"
    loader = TrainingLoader(
        TensorDataset(torch.arange(4)),
        micro_batch=2,
        rank=sample,
        world_size=ranks.size("samples"),
        shuffle=False,
    )
    assert [batch.tolist() for (batch,) in loader] == [[sample, sample + 2]]


def written_within_a_part() -> list[float]:
    """Return a bias into which every rank has written its number in GatheredParameters."""
    ranks = Topology(Mesh(shard=2, tensor=2), HOST.type)
    model = built(ranks.rank("tensor"))
    plan = replace(plan_for(config(3), model), mesh=ranks.mesh)
    sharding = distribute(model, plan, policy(plan.effective), ranks, HOST)
    bias = sharding.masters["layer.bias"]
    first = dist.get_process_group_ranks(ranks.group("gradients"))[0]
    set_current(ranks)
    try:
        with dsengine.zero.GatheredParameters([bias], modifier_rank=first), torch.no_grad():
            bias.fill_(rank())
    finally:
        set_current(Topology(Mesh(replicate=4), HOST.type))
    return full(bias.detach()).tolist()
