# ruff: noqa
"""Tiny deterministic models, initial weights and data used for the golden runs.

Nothing here depends on deepspeed; another engine imports this file and starts
from the same weights and the same batches.
"""

import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

MLP_IN, MLP_HID = 32, 64
VOCAB, DIM, HEADS, LAYERS, CTX = 64, 32, 4, 2, 16
MICRO = 4  # samples per rank per micro batch


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(MLP_IN, MLP_HID)
        self.fc2 = nn.Linear(MLP_HID, MLP_HID)
        self.fc3 = nn.Linear(MLP_HID, MLP_IN)

    def forward(self, x, y):
        x = x.to(self.fc1.weight.dtype)
        h = torch.tanh(self.fc1(x))
        h = torch.tanh(self.fc2(h))
        out = self.fc3(h)
        return ((out.float() - y) ** 2).mean()


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(d, dim=2)
        sh = lambda z: z.view(b, t, self.heads, d // self.heads).transpose(1, 2)
        q, k, v = sh(q), sh(k), sh(v)
        att = (q @ k.transpose(-2, -1)).float() / math.sqrt(d // self.heads)
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        att = att.masked_fill(~mask, float("-inf")).softmax(-1).to(v.dtype)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    """Two layer GPT, untied head, learned positions."""

    def __init__(self, vocab=VOCAB, dim=DIM, heads=HEADS, layers=LAYERS, ctx=CTX):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(ctx, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.lnf = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x, y = ids[:, :-1], ids[:, 1:]
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        for blk in self.blocks:
            h = blk(h)
        logits = self.head(self.lnf(h)).float()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.reshape(-1))


def build(name):
    m = MLP() if name == "mlp" else GPT()
    rng = np.random.default_rng(1234 if name == "mlp" else 4321)
    with torch.no_grad():
        for n, p in m.named_parameters():  # order of named_parameters() defines the stream
            if "ln" in n:
                w = np.ones(p.shape) if n.endswith("weight") else np.zeros(p.shape)
            elif n.endswith("bias"):
                w = 0.01 * rng.standard_normal(p.shape)
            else:
                w = rng.standard_normal(p.shape) * (0.25 if name == "mlp" else 0.15)
            p.copy_(torch.from_numpy(np.asarray(w, dtype=np.float32)))
    return m


def batch(name, step, micro, rank):
    """Batch for optimizer step `step`, micro batch `micro`, data-parallel rank `rank`."""
    rng = np.random.default_rng([7, step, micro, rank])
    if name == "mlp":
        x = rng.standard_normal((MICRO, MLP_IN)).astype(np.float32)
        y = (3.0 * np.sin(x) + np.roll(x, 1, axis=1)).astype(np.float32)
        return (torch.from_numpy(x), torch.from_numpy(y))
    start = rng.integers(0, VOCAB, (MICRO, 1))
    stride = rng.integers(1, 5, (MICRO, 1))
    ids = (start + stride * np.arange(CTX + 1)[None, :]) % VOCAB
    return (torch.from_numpy(ids.astype(np.int64)),)
