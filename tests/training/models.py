"""Small models with blocks, tied weights, frozen and unused parameters."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, CONTEXT = 61, 24, 12
LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
}
"""Fields of a small config of transformers."""


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Tied(nn.Module):
    """A byte-level model with a tied head, a frozen table, a buffer and a scale.

    ``unused`` is never used; ``twice`` is called twice in each forward.
    """

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.positions.requires_grad_(False)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(blocks))
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(WIDTH, 5)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("steps_seen", torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        inputs, targets = ids[:, :-1], ids[:, 1:]
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        x = torch.tanh(self.twice(x))
        for block in self.blocks:
            x = block(x)
        x = self.twice(x) * self.scale
        logits = self.head(self.norm(x)).float() / math.sqrt(WIDTH)
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def tied(seed: int = 0, blocks: int = 3) -> Tied:
    torch.manual_seed(seed)
    return Tied(blocks)


def batch(step: int, micro: int, rank: int, samples: int = 4) -> Tensor:
    """Return learnable sequences: a random start and stride."""
    generator = torch.Generator().manual_seed(10_000 * step + 100 * micro + rank)
    start = torch.randint(VOCABULARY, (samples, 1), generator=generator)
    stride = torch.randint(1, 5, (samples, 1), generator=generator)
    return ((start + stride * torch.arange(CONTEXT + 1)) % VOCABULARY).to(device_type())


def device_type() -> str:
    """Return the device of the engines; ranks on the host see no GPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"
