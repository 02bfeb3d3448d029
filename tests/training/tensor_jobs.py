"""Jobs of the tests of tensor parallelism. Each function runs on every rank."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import dsengine
from dsengine.parallel.tiling import TiledMLP
from training import sequence_jobs
from training.sequence_jobs import (
    LENGTH,
    VOCABULARY,
    Curve,
    causal,
    sample_batch,
    tiled_losses,
    token_losses,
)

RULES = [
    {"patterns": [r".*\.(q|k|v|up)\.weight"]},
    {"patterns": [r".*\.(out|down)\.weight"], "partition_type": "row"},
    {"patterns": [r".*head_norm\.weight"], "partition_type": "skip", "grad_allreduce": True},
    {"patterns": [r"head\.weight"], "partition_type": "column", "gather_output": True},
]


FUSED = [
    {"patterns": [r".*\.qkv\.weight"], "shape": [[32, 16, 16], -1], "partition_dim": 0},
    {"patterns": [r".*\.gate_up\.weight"], "shape": [2, -1]},
    {"patterns": [r".*\.pair\.weight"], "shape": [[8, 24], 32], "gather_output": True},
    {"patterns": [r".*\.merge\.weight"], "partition_type": "row", "shape": [-1, 2]},
    {"patterns": [r".*\.out\.weight"], "partition_type": "row"},
]


RULED = {"rules": (VOCABULARY, 32), "odd vocabulary": (VOCABULARY + 1, 32), "odd width": (8, 42)}
RULED |= {"tiled": RULED["rules"]}
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
        return x + self.mlp(self.mlp_norm(x))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.up(x)))


class TiledBlock(Block):
    """The same, with an MLP in tiles of tokens."""

    def mlp(self, x: Tensor) -> Tensor:
        return TiledMLP.apply(Block.mlp, self, x, shards=3)


class FusedBlock(nn.Module):
    """Grouped-query attention and an MLP with several matrices in a weight, as ``FUSED`` names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.gate_up, self.merge = nn.Linear(width, 48, bias=False), nn.Linear(48, width)
        self.pair = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (-1, 8))
        query, key, value = heads.tensor_split((heads.shape[-2] // 2, heads.shape[-2] * 3 // 4), -2)
        key, value = (each.repeat_interleave(2, -2) for each in (key, value))
        x = x + self.out(causal(query, key, value).flatten(-2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        both = torch.cat([nn.functional.silu(gate) * up, up], -1)
        first, second = self.pair(x).split([8, 24], -1)
        return x + self.merge(both) + torch.cat([first.sin(), second.tanh()], -1)


class Ruled(nn.Module):
    """A language model whose layers ``RULES``, or ``FUSED``, split, with a scalar parameter."""

    def __init__(self, vocabulary: int, width: int, block: type = Block) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.scale = nn.Parameter(torch.ones(()))
        self.blocks = nn.ModuleList(block(width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids: Tensor, position_ids: Tensor, **_: Any) -> Tensor:
        x = (self.tokens(input_ids) + self.positions(position_ids)) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Tiled(Ruled):
    """A model that returns the sum of the losses of tokens, computed in tiles."""

    sums_losses = True

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width, TiledBlock)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, labels: Any = None, **_: Any
    ) -> Tensor:
        x = (self.tokens(input_ids) + self.positions(position_ids)) * self.scale
        for block in self.blocks:
            x = block(x)
        return tiled_losses(self, x, labels)


def model_of(kind: str, seed: int = 5) -> nn.Module:
    if kind == "fused":
        torch.manual_seed(seed)
        return Ruled(VOCABULARY, 32, FusedBlock)
    if kind not in RULED:
        return sequence_jobs.model_of(kind, divided=False)
    torch.manual_seed(seed)
    return (Tiled if kind == "tiled" else Ruled)(*RULED[kind])


def config_of(kind: str, stage: int, ranks: int, **options: Any) -> dict[str, Any]:
    """Return a config that splits the layers of ``kind`` over ``ranks``."""
    chosen = {"accumulation": 1, "optimizer": "AdamW", "clip": 0.5} | options
    block: dict[str, Any] = {"autotp_size": ranks}
    if kind == "fused":
        block["partition_config"] = {"layer_specs": FUSED}
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


def whole(loss: Tensor) -> Tensor:
    """Return a loss of split logits as an ordinary tensor."""
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


def divided(
    kind: str,
    stage: int,
    ranks: int = 2,
    steps: int = 6,
    sequence: int = 1,
    more: dict[str, Any] | None = None,
    block: dict[str, Any] | None = None,
    **options: Any,
) -> Curve:
    """Train with layers split over ``ranks``, and samples over ``sequence`` ranks.

    ``block``: further keys of ``tensor_parallel``.
    """
    config = config_of(kind, stage, ranks, **options) | (more or {})
    config["tensor_parallel"] |= block or {}
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
            total += whole(loss.detach()) / accumulation
        dist.all_reduce(total)
        curve.append((total.item() / dist.get_world_size(), engine.get_global_grad_norm() or 0.0))
    engine.destroy()
    return curve


def one_process(kind: str, replicas: int, steps: int, **options: Any) -> Curve:
    """Train in one process without an engine."""
    chosen = {"accumulation": 1, "optimizer": "AdamW", "clip": 0.5} | options
    model = model_of(kind)
    return sequence_jobs.one_process(kind, replicas=replicas, steps=steps, model=model, **chosen)
