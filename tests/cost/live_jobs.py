"""Jobs for training processes: measure an engine's memory and traffic, step by step."""

import gc
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

import dsengine
from dsengine.observation.memory import LiveBytes

WIDTH, BLOCKS, VOCABULARY, EXPERTS = 128, 8, 1024, 4
PHASES = ("init", "forward", "backward", "step")
WINDOWS = 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(torch.relu(self.up(hidden)))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_experts = EXPERTS
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH)

    def forward(self, tokens: Tensor, numbers: Tensor, scores: Tensor) -> Tensor:
        return torch.stack(
            [
                torch.relu(token @ self.up[number]) @ self.down[number] * score
                for token, number, score in zip(tokens, numbers[:, 0], scores, strict=True)
            ]
        )


class Mixture(nn.Module):
    """A block whose router sends every token to one of its experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS), Experts()

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.flatten(0, 1)
        scores, numbers = self.router(rows).softmax(-1).topk(1)
        return hidden + self.experts(rows, numbers, scores).view_as(hidden)


class Model(nn.Module):
    """Large against its activations: one token runs through it."""

    def __init__(self, block: type[nn.Module] = Block) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        # The estimate has one unit for a block with experts, the engine two smaller ones.
        number = BLOCKS if block is Block else 2 * BLOCKS
        self.blocks = nn.ModuleList(block() for _ in range(number))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def loss_of(engine: Any) -> Tensor:
    tokens = torch.zeros(1, 1, dtype=torch.long)
    return engine(tokens).float().pow(2).mean()


def measured(config: dict[str, Any], mixed: bool = False) -> dict[str, dict[str, int]]:
    """Return peak and remaining bytes of this rank by phase, for the last micro batch of a window.

    gloo frees the tensors of a finished collective later, from its own thread: the minimum of
    several runs and windows is what the engine itself keeps. ``mixed``: with experts.
    """
    block = Mixture if mixed else Block
    runs = [_run(config, windows, block) for windows in (0, 0, WINDOWS)]
    return {kind: _minimum([row[kind] for run in runs for row in run]) for kind in runs[0][0]}


def _run(
    config: dict[str, Any], windows: int, block: type[nn.Module]
) -> list[dict[str, dict[str, int]]]:
    """Return bytes of ``initialize`` and of each window but the first two: the first creates the
    states of the optimizer, the second sorts the reducer's buckets."""
    gc.collect()
    torch.manual_seed(0)
    live = LiveBytes(torch.device("cpu"), existing=False)
    live.start("init")
    engine, *_ = dsengine.initialize(model=Model(block), config=config)
    live.enter("outside")
    rows = [{"peaks": live.peaks, "remaining": live.at_exit}]
    steps = config["gradient_accumulation_steps"]
    for window in range(windows):
        live.peaks, live.at_exit = {}, {}
        for micro in range(steps):
            _micro_batch(engine, live, counted=micro == steps - 1)
        if window > 1:
            rows.append({"peaks": live.peaks, "remaining": live.at_exit})
    live.stop()
    engine.destroy()
    return rows


def _minimum(windows: list[dict[str, int]]) -> dict[str, int]:
    return {
        phase: min(sizes)
        for phase in PHASES
        if (sizes := [window[phase] for window in windows if phase in window])
    }


def _micro_batch(engine: Any, live: LiveBytes, *, counted: bool) -> None:
    live.enter("forward" if counted else "outside")
    loss = loss_of(engine)
    live.enter("backward" if counted else "outside")
    engine.backward(loss)
    del loss
    live.enter("step" if counted else "outside")
    engine.step()
    live.enter("outside")


def sent(config: dict[str, Any]) -> dict[str, int]:
    """Bytes of one step by collective, as the engine's own log has counted them."""
    torch.manual_seed(0)
    log = {"comms_logger": {"enabled": True, "prof_all": True}}
    engine, *_ = dsengine.initialize(model=Model(), config=config | log)
    counted = engine._reporter.communication
    total: Counter[str] = Counter()
    for _ in range(2):
        counted.counts.clear()
        for _ in range(config["gradient_accumulation_steps"]):
            engine.backward(loss_of(engine))
            engine.step()
    for (name, size), times in counted.counts.items():
        total[name] += size * times
    engine.destroy()
    return dict(total)
