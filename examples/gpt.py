"""A byte-level GPT, trained on the source files of the Python standard library."""

import json
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset


class Block(nn.Module):
    """Attention and a feed-forward layer on a normalized residual stream."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.attention_out = nn.Linear(hidden, hidden)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.feed_forward_in = nn.Linear(hidden, 4 * hidden)
        self.feed_forward_out = nn.Linear(4 * hidden, hidden)

    def forward(self, stream: Tensor) -> Tensor:
        batch, length, hidden = stream.shape
        shape = (batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = (
            self.query_key_value(self.attention_norm(stream)).view(shape).permute(2, 0, 3, 1, 4)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.attention_out(mixed.transpose(1, 2).reshape(stream.shape))
        widened = functional.gelu(self.feed_forward_in(self.feed_forward_norm(stream)))
        return stream + self.feed_forward_out(widened)


class GPT(nn.Module):
    """Predicts the next byte. ``forward(tokens)`` returns the mean loss in nats per byte."""

    config: dict[str, object]

    def __init__(
        self, *, hidden_size: int, layers: int, heads: int, vocab_size: int, max_positions: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.positions = nn.Embedding(max_positions, hidden_size)
        self.blocks = nn.ModuleList(Block(hidden_size, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.head = nn.Linear(hidden_size, vocab_size, bias=False)
        self.apply(initialize)

    def forward(self, tokens: Tensor) -> Tensor:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        places = torch.arange(inputs.shape[1], device=inputs.device)
        stream = self.tokens(inputs) + self.positions(places)
        for block in self.blocks:
            stream = block(stream)
        logits = self.head(self.norm(stream)).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def from_json(path: Path) -> GPT:
    """Build the model that a file like gpt.json describes."""
    described = json.loads(path.read_text())
    names = ("hidden_size", "layers", "heads", "vocab_size", "max_positions")
    model = GPT(**{name: described[name] for name in names})
    model.config = described  # read by the estimator for activation sizes
    return model


class StandardLibrary(Dataset[Tensor]):
    """Windows of ``length + 1`` bytes from the Python files of this interpreter."""

    def __init__(self, length: int, limit: int = 8_000_000) -> None:
        self.length = length
        self.text = standard_library(limit)

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.length
        window = bytearray(self.text[start : start + self.length + 1])
        return torch.frombuffer(window, dtype=torch.uint8).long()


def standard_library(limit: int) -> bytes:
    """Return the first ``limit`` bytes of all standard library modules, sorted by name."""
    parts: list[bytes] = []
    size = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= limit:
            break
    return b"\n".join(parts)[:limit]
