"""Jobs for training processes: measure what an engine holds, window after window."""

import gc
from typing import Any

import torch
from torch import Tensor, nn

import dsconfig
import dsengine
from dsengine.memory import LiveBytes

WIDTH, BLOCKS, VOCABULARY = 128, 8, 1024
PHASES = ("forward", "backward", "step")
WINDOWS = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(torch.relu(self.up(hidden)))


class Model(nn.Module):
    """Large against its activations: one token runs through it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def measured_and_estimated(config: dict[str, Any]) -> dict[str, tuple[int, int, int, int]]:
    """(measured peak, estimated peak, measured rest, estimated rest) of the last micro batch.

    gloo lets go of a finished collective's tensors some time later, from a thread of its own:
    the least of several windows is what the engine holds by itself.
    """
    gc.collect()
    torch.manual_seed(0)
    live = LiveBytes(torch.device("cpu"), existing=False)
    live.start("outside")
    model = Model()
    tree = dsengine.describe(model)
    engine, *_ = dsengine.initialize(model=model, config=config)
    tokens = torch.zeros(1, 1, dtype=torch.long)
    peaks: dict[str, list[int]] = {phase: [] for phase in PHASES}
    rests: dict[str, list[int]] = {phase: [] for phase in PHASES}
    steps = config["gradient_accumulation_steps"]
    for _ in range(WINDOWS):
        for micro in range(steps):
            _micro_batch(engine, live, tokens, counted=micro == steps - 1)
        for phase in PHASES:
            peaks[phase].append(live.peaks.pop(phase))
            rests[phase].append(live.rests.pop(phase))
    live.stop()
    engine.destroy()
    facts = dsconfig.Facts(
        world_size=2, nodes=1, device=dsconfig.DeviceFacts(name="cpu", kind="cpu"), model=tree
    )
    expected = dsconfig.estimate(dsconfig.resolve(config, facts), facts).options[0].device
    return {
        str(phase): (
            min(peaks[phase][1:]),
            expected.phase_bytes[phase],
            min(rests[phase][1:]),
            expected.rest_bytes[phase],
        )
        for phase in expected.phase_bytes
        if phase in PHASES
    }


def _micro_batch(engine: Any, live: LiveBytes, tokens: Tensor, *, counted: bool) -> None:
    live.enter("forward" if counted else "outside")
    loss = engine(tokens).float().pow(2).mean()
    live.enter("backward" if counted else "outside")
    engine.backward(loss)
    del loss
    live.enter("step" if counted else "outside")
    engine.step()
    live.enter("outside")
