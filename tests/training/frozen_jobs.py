"""Jobs with a model whose adapters alone are trained."""

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dsengine
from dsengine.torch_private.tensors import local_part

WIDTH, BLOCKS = 32, 3


class Adapted(nn.Module):
    """Frozen blocks of ``dtype``, each with a trained low-rank adapter."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        for name, parameter in self.named_parameters():
            if "adapter" not in name:
                parameter.requires_grad_(False)
                parameter.data = parameter.data.to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden.float().square().mean()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.adapter_down = nn.Linear(WIDTH, 4, bias=False)
        self.adapter_up = nn.Linear(4, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.linear(hidden) + self.adapter_up(self.adapter_down(hidden))


def trained(settings: dict[str, Any], dtype: str, folder: str | None = None) -> dict[str, Any]:
    """Return losses of six steps, dtypes of masters, and bytes sent by the last step.

    With ``folder`` the run is saved after three steps and resumed in another engine with other
    weights.
    """
    torch.manual_seed(0)
    logged = settings | {"comms_logger": {"enabled": True, "prof_all": True}}
    engine, *_ = dsengine.initialize(model=Adapted(getattr(torch, dtype)), config=logged)
    before = _frozen_values(engine)
    losses: list[float] = []
    for step in range(6):
        engine._reporter.communication.counts.clear()
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        loss = engine(torch.randint(0, 64, (4, 8), generator=generator))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if folder is not None and step == 2:
            engine.save_checkpoint(folder)
            torch.manual_seed(7)
            engine, *_ = dsengine.initialize(model=Adapted(getattr(torch, dtype)), config=logged)
            engine.load_checkpoint(folder)
    masters = engine.sharding.masters
    sent: Counter[str] = Counter()
    for (name, size), times in engine._reporter.communication.counts.items():
        sent[name] += size * times
    return {
        "losses": losses,
        "frozen": _dtypes(p for p in masters.values() if not p.requires_grad),
        "trained": _dtypes(p for p in masters.values() if p.requires_grad),
        "unchanged": _frozen_values(engine) == before,
        "sent": dict(sent),
    }


def unfrozen(settings: dict[str, Any]) -> list[float]:
    """Return losses of six steps on one batch; everything is trained from the fourth on."""
    torch.manual_seed(0)
    model = Adapted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    engine, *_ = dsengine.initialize(
        model=model, optimizer=optimizer, config={**settings, "optimizer": None}
    )
    tokens = torch.randint(0, 64, (4, 8), generator=torch.Generator().manual_seed(1))
    losses: list[float] = []
    for step in range(6):
        if step == 3:
            engine.module.requires_grad_(True)
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def _dtypes(parameters: Any) -> list[str]:
    return sorted({str(local_part(parameter).dtype) for parameter in parameters})


def _frozen_values(engine: Any) -> list[float]:
    masters = engine.sharding.masters.values()
    return [local_part(p).double().sum().item() for p in masters if not p.requires_grad]
