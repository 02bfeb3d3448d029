"""Resuming from DeepSpeed's checkpoints at every stage."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dsengine
from dsengine.checkpoints import CheckpointError


class Recorded(nn.Module):
    """The model of the recordings, whose losses were recorded with four samples per step."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(13, 6)
        self.a = nn.Linear(6, 10)
        self.norm = nn.LayerNorm(10)
        self.b = nn.Linear(10, 6, bias=False)
        self.head = nn.Linear(6, 13, bias=False)
        self.head.weight = self.emb.weight
        self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.register_buffer("buf", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(torch.tanh(self.norm(self.a(self.emb(x)))))
        return self.head(h * self.frozen)


def started(stage: int, precision: str) -> Any:
    torch.manual_seed(99)
    model = Recorded()
    config: dict[str, Any] = {
        "train_batch_size": 4,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_num_steps": 5, "warmup_max_lr": 0.01},
        },
        "zero_optimization": {"stage": stage},
    }
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1]},
        {"params": [p for p in trainable if p.ndim == 1], "weight_decay": 0.0},
    ]
    return dsengine.initialize(model=model, model_parameters=groups, config=config)[0]


def next_losses(engine: Any) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(6):
        x = torch.randint(13, (4, 5), generator=generator)
        if step >= 3:
            logits = engine(x).float()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten())
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


def taken_over(recordings: str) -> dict[str, Any]:
    """Return how each recorded run continues at each stage."""
    result: dict[str, Any] = {}
    found = sorted(Path(recordings).iterdir())
    for recording in found:
        for stage in (0, 1, 2, 3) if _precision(recording) == "fp32" else (2, 3):
            engine, run = _resume(recording, stage)
            engine.destroy()
            result[f"{recording.name} at {stage}"] = run
    engine, _ = _resume(found[-1], 3)
    try:
        engine.load_checkpoint(str(Path(recordings).parent), tag="nothing")
    except CheckpointError as error:
        result["missing"] = str(error)
    engine.destroy()
    return result


def _precision(recording: Path) -> str:
    return recording.name.split("_")[1]


def _resume(recording: Path, stage: int) -> tuple[Any, dict[str, Any]]:
    engine = started(stage, "bf16" if _precision(recording) == "bf16" else "fp32")
    path, client = engine.load_checkpoint(str(recording))
    return engine, {
        "losses": next_losses(engine),
        "expected": json.loads((recording / "losses.json").read_text())[3:],
        "client": client,
        "path": Path(path).name,
        "steps": engine.global_steps,
    }
