"""Jobs on four ranks of which two have another part of the model."""

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from dsconfig import Mesh
from dsengine.loop.accumulating import Join
from dsengine.loop.data import TrainingLoader
from dsengine.optimizers.gradients import describe_non_finite
from dsengine.topology import Topology, rank

HOST = torch.device("cpu")


def gradient_of_gathered_losses() -> float:
    """Gather a loss per pair of ranks, weight those by rank + 1, and return its gradient."""
    group = Topology(Mesh(shard=2, sequence=2), HOST.type).group("sequence")
    loss = torch.zeros((), requires_grad=True)
    losses = torch.stack(dist.nn.functional.all_gather(loss, group=group))  # pyright: ignore
    (losses * torch.arange(1.0, 3)).sum().mul(rank() + 1).backward()
    assert loss.grad is not None
    return loss.grad.item()


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
