"""Jobs of the tests of expert parallelism. Each function runs on every rank."""

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import dsengine
from training import sequence_jobs
from training.sequence_jobs import VOCABULARY, Curve, sample_batch

WIDTH = 32
PATTERN = r"blocks\.\d+\.mixture"
KINDS = {"own": (6, 0.0), "four experts": (4, 0.0), "one expert for all": (2, 100.0)}
"""Experts of the own models, and the bias of the first one's score."""


class Experts(nn.Module):
    """Fused experts with biases, each computed with the rows that chose it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.num_experts = count
        self.up = nn.Parameter(torch.randn(count, WIDTH, 48) / 6)
        self.bias = nn.Parameter(torch.randn(count, 48) / 6)
        self.down = nn.Parameter(torch.randn(count, 48, WIDTH) / 7)

    def forward(self, tokens: Tensor, numbers: Tensor, scores: Tensor) -> Tensor:
        total = torch.zeros_like(tokens)
        for expert in range(self.num_experts):
            rows, places = torch.where(numbers == expert)
            inner = F.silu(tokens[rows] @ self.up[expert] + self.bias[expert])
            output = inner @ self.down[expert] * scores[rows, places, None]
            total = total.index_add(0, rows, output)
        return total


class Mixture(nn.Module):
    """A router with a bias, and a shared expert, around experts."""

    def __init__(self, count: int, favor: float) -> None:
        super().__init__()
        self.router, self.shared = nn.Linear(WIDTH, count), nn.Linear(WIDTH, WIDTH)
        self.experts = Experts(count)
        nn.init.zeros_(self.router.bias)
        self.router.bias.data[0] = favor
        self.chosen = 2 if count > 2 else 1

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        scores, numbers = self.router(rows).softmax(-1).topk(self.chosen)
        return (self.experts(rows, numbers, scores) + self.shared(rows)).view_as(x)


class Block(nn.Module):
    def __init__(self, count: int, favor: float) -> None:
        super().__init__()
        self.norm, self.mixture = nn.RMSNorm(WIDTH), Mixture(count, favor)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixture(self.norm(x))


class Own(nn.Module):
    """A language model with experts that a pattern names, and a scalar parameter."""

    def __init__(self, count: int, favor: float) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.scale = nn.Parameter(torch.ones(()))
        self.blocks = nn.ModuleList(Block(count, favor) for _ in range(2))

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        x = self.tokens(input_ids) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def model_of(kind: str, seed: int = 5) -> Any:
    """Return a tiny model; those of transformers add a load-balancing loss."""
    torch.manual_seed(seed)
    if kind in KINDS:
        return Own(*KINDS[kind])
    import transformers as hf

    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.1,
        "use_cache": False,
        "pad_token_id": 0,
    }
    prefix, _, implementation = kind.partition(" ")
    config = getattr(hf, f"{prefix}Config")(**shape)
    config._experts_implementation = implementation or "grouped_mm"
    return getattr(hf, f"{prefix}ForCausalLM")(config)


def config_of(kind: str, stage: int, ranks: int, **options: Any) -> dict[str, Any]:
    """Return a config that divides the experts of ``kind`` over ``ranks``."""
    chosen = {"accumulation": 1, "optimizer": "AdamW", "clip": 0.5} | options
    block: dict[str, Any] = {"enabled": True, "autoep_size": ranks}
    if kind in KINDS:
        block["moe_layer_pattern"] = PATTERN
    return sequence_jobs.settings(stage, **chosen) | {"expert_parallel": block}


def micro_batch_loss(model: Any, kind: str, number: int) -> Tensor:
    batch = sample_batch(kind, number)
    tokens, labels = batch["input_ids"], batch["labels"]
    if kind not in KINDS:
        return model(input_ids=tokens, labels=tokens).loss
    logits = model(input_ids=tokens).flatten(0, 1)
    return F.cross_entropy(logits, labels.flatten(), ignore_index=sequence_jobs.IGNORED)


def divided(
    kind: str,
    stage: int,
    degree: int = 2,
    steps: int = 8,
    more: dict[str, Any] | None = None,
    **options: Any,
) -> Curve:
    """Train with experts divided over ``degree`` ranks."""
    config = config_of(kind, stage, degree, **options) | (more or {})
    # Ranks begin with different weights.
    model = model_of(kind, seed=5 + dist.get_rank())
    engine, *_ = dsengine.initialize(model=model, config=config)
    world, curve = dist.get_world_size(), Curve()
    accumulation = config["gradient_accumulation_steps"]
    for step in range(steps):
        total = torch.zeros(())
        for micro in range(step * accumulation, (step + 1) * accumulation):
            loss = micro_batch_loss(engine, kind, micro * world + dist.get_rank())
            engine.backward(loss)
            engine.step()
            total += loss.detach() / accumulation
        dist.all_reduce(total)
        curve.append((total.item() / world, engine.get_global_grad_norm() or 0.0))
    engine.destroy()
    return curve


@cache
def one_process(
    kind: str, replicas: int, steps: int, accumulation: int, optimizer: str, clip: float
) -> Curve:
    """Train in one process without an engine."""
    model = model_of(kind)
    trained = getattr(torch.optim, optimizer)(
        model.parameters(), **sequence_jobs.OPTIMIZERS[optimizer]
    )
    curve, count = Curve(), accumulation * replicas
    for step in range(steps):
        total = 0.0
        for number in range(step * count, (step + 1) * count):
            loss = micro_batch_loss(model, kind, number) / count
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        trained.step()
        trained.zero_grad()
        curve.append((total, norm.item()))
    return curve
