"""Jobs of the tests of tensor parallelism. Each function runs on every rank."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dsengine
from training import sequence_jobs
from training.sequence_jobs import LENGTH, VOCABULARY, Curve, causal, sample_batch, token_losses

RULES = [
    {"patterns": [r".*\.(q|k|v|up)\.weight"]},
    {"patterns": [r".*\.(out|down)\.weight"], "partition_type": "row"},
    {"patterns": [r".*head_norm\.weight"], "partition_type": "skip", "grad_allreduce": True},
    {"patterns": [r"head\.weight"], "partition_type": "column", "gather_output": True},
]


RULED = {"rules": (VOCABULARY, 32), "odd vocabulary": (VOCABULARY + 1, 32), "odd width": (8, 42)}
"""Vocabulary and width of models that ``RULES`` split, by kind."""


class Block(nn.Module):
    """Attention with normalized heads, and an MLP; every linear layer has a bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.head_norm = nn.RMSNorm(8)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm(x)
        query, key, value = (
            layer(normal).unflatten(-1, (-1, 8)) for layer in (self.q, self.k, self.v)
        )
        mixed = causal(self.head_norm(query), self.head_norm(key), value)
        x = x + self.out(mixed.flatten(-2))
        return x + self.down(nn.functional.silu(self.up(self.mlp_norm(x))))


class Ruled(nn.Module):
    """A language model whose layers ``RULES`` split, with a scalar parameter."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.scale = nn.Parameter(torch.ones(()))
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids: Tensor, position_ids: Tensor, **_: Any) -> Tensor:
        x = (self.tokens(input_ids) + self.positions(position_ids)) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def model_of(kind: str, seed: int = 5) -> nn.Module:
    if kind not in RULED:
        return sequence_jobs.model_of(kind, divided=False)
    torch.manual_seed(seed)
    return Ruled(*RULED[kind])


def config_of(kind: str, stage: int, ranks: int, **options: Any) -> dict[str, Any]:
    """Return a config that splits the layers of ``kind`` over ``ranks``."""
    chosen = {"accumulation": 1, "optimizer": "AdamW", "clip": 0.5} | options
    block: dict[str, Any] = {"autotp_size": ranks}
    if kind in RULED:
        block["partition_config"] = {"layer_specs": RULES}
    return sequence_jobs.settings(stage, **chosen) | {"tensor_parallel": block}


def micro_batch_loss(engine: Any, kind: str, micro: int, sequence: int = 1) -> Tensor:
    """Return the loss of this rank's (part of a) micro batch."""
    number = micro * engine.dp_world_size + engine.topology.rank("samples")
    batch = sample_batch(kind, number)
    labelled = int((batch["labels"] != sequence_jobs.IGNORED).sum())
    length, part = LENGTH // sequence, engine.topology.rank("sequence")
    own = {n: v[:, part * length : (part + 1) * length].contiguous() for n, v in batch.items()}
    return token_losses(engine, own)[0] * sequence / labelled


def divided(
    kind: str,
    stage: int,
    ranks: int = 2,
    steps: int = 6,
    sequence: int = 1,
    more: dict[str, Any] | None = None,
    **options: Any,
) -> Curve:
    """Train with layers split over ``ranks``, and samples over ``sequence`` ranks."""
    config = config_of(kind, stage, ranks, **options) | (more or {})
    if sequence > 1:
        config["sequence_parallel_size"] = sequence
    # Ranks begin with different weights, except those of transformers.
    model = model_of(kind, seed=5 + dist.get_rank())
    engine, *_ = dsengine.initialize(model=model, config=config)
    curve: Curve = []
    accumulation = config["gradient_accumulation_steps"]
    for step in range(steps):
        total = torch.zeros(())
        for micro in range(accumulation):
            loss = micro_batch_loss(engine, kind, step * accumulation + micro, sequence)
            engine.backward(loss)
            engine.step()
            total += loss.detach() / accumulation
        dist.all_reduce(total)
        curve.append((total.item() / dist.get_world_size(), engine.get_global_grad_norm() or 0.0))
    engine.destroy()
    return curve


def one_process(kind: str, replicas: int, steps: int, **options: Any) -> Curve:
    """Train in one process without an engine."""
    chosen = {"accumulation": 1, "optimizer": "AdamW", "clip": 0.5} | options
    model = model_of(kind)
    return sequence_jobs.one_process(kind, replicas=replicas, steps=steps, model=model, **chosen)
