"""A small model, data and training loop for jobs."""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from training.models import device_type

GLOBAL_BATCH = 12
VOCABULARY = 31
WIDTH = 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class ToyModel(nn.Module):
    """A model with a tied embedding, blocks, a persistent buffer and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def batch_of(step: int) -> Tensor:
    """Return the rank's part of a step's global batch, which is equal at any world size."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(VOCABULARY, (GLOBAL_BATCH, 9), generator=generator)
    per_rank = GLOBAL_BATCH // world_size()
    return tokens[rank() * per_rank : (rank() + 1) * per_rank].to(device_type())


def shard(model: ToyModel, stage: int) -> nn.Module:
    """Replicate at stage 0, fully shard at 3, shard but keep parameters unsharded at 1 and 2."""
    if stage == 0:
        model.to(device_type())
        return DistributedDataParallel(model) if dist.is_initialized() else model
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=stage == 3)
    fully_shard(model, reshard_after_forward=stage == 3)
    return model


def bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def keep_unsharded(model: nn.Module, stage: int) -> None:
    if stage in (1, 2):
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_reshard_after_backward(False)
                module.reshard()
                module.unshard()


def named_parameters_for(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, stage: int, step: int) -> float:
    loss = loss_of(model, batch_of(step))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    keep_unsharded(model, stage)
    return mean(loss.item())


def mean(value: float) -> float:
    if not dist.is_initialized():
        return value
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / world_size()


def rank() -> int:
    return int(os.environ["RANK"])


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"])
