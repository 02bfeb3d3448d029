"""Jobs with configs and models whose experts cannot be divided. Each runs on every rank."""

from typing import Any

from torch import nn

import dsengine
from training import expert_jobs


class Apart(nn.Module):
    """Experts that are modules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture = nn.Module()
        self.mixture.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))


def refused(kind: str, block: dict[str, Any], more: dict[str, Any] | None = None) -> str:
    """Return the error of ``initialize``."""
    config = expert_jobs.config_of(kind, 1, 2)
    config["expert_parallel"] |= block
    config |= more or {}
    model = Apart() if kind == "apart" else expert_jobs.model_of(kind)
    try:
        engine, *_ = dsengine.initialize(model=model, config=config)
    except ValueError as error:
        return str(error)
    engine.destroy()
    return ""
