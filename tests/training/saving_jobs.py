"""Jobs that save weights of stage 3 on rank 0 alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

import dsengine
from training import models
from training.jobs import config, window

SGD = {"type": "SGD", "params": {"lr": 0.1}}
"""Without states, so that the weights determine the next losses."""


def _saves(module: Any, folder: Path) -> dict[str, Callable[[], object]]:
    state = module.state_dict()
    copied = {name: value.clone() for name, value in state.items()}
    distinct = {name: value for name, value in state.items() if name != "head.weight"}
    return {
        "torch": lambda: torch.save(state, folder / "model.pt"),
        "nested": lambda: torch.save({"epoch": 1, "model": [state]}, folder / "nested.pt"),
        "copied": lambda: torch.save(copied, folder / "copied.pt"),
        "module": lambda: torch.save(module, folder / "module.pt"),
        "parameter": lambda: torch.save(module.get_parameter("scale"), folder / "scale.pt"),
        "safetensors": lambda: save_file(distinct, folder / "model.safetensors"),
    }


def saved_on_rank_0(precision: dict[str, Any], folder: str) -> dict[str, Any]:
    """Save in several ways on rank 0, train on, and save gathered weights."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=config(3, **precision))
    window(engine, 0)
    root, errors = Path(folder), {}
    (root / "model.pt").write_text("an earlier checkpoint")
    if dist.get_rank() == 0:
        for name, save in _saves(engine.module, root).items():
            try:
                save()
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
    written = sorted(path.name for path in root.iterdir())
    earlier = (root / "model.pt").read_text()
    window(engine, 1)
    with dsengine.zero.GatheredParameters(list(engine.module.parameters())):
        state = {name: value.detach().clone() for name, value in engine.module.state_dict().items()}
        if dist.get_rank() == 0:
            torch.save(engine.module.state_dict(), root / "gathered.pt")
            state.pop("head.weight")
            save_file(state, root / "gathered.safetensors")
    shapes: dict[str, Any] = {}
    if dist.get_rank() == 0:
        loaded = torch.load(root / "gathered.pt") | load_file(root / "gathered.safetensors")
        shapes = {name: tuple(value.shape) for name, value in loaded.items()}
        shapes["is plain"] = all(type(value) is torch.Tensor for value in loaded.values())
    torch.save({"other": torch.ones(1)}, root / f"other{dist.get_rank()}.pt")
    engine.destroy()
    return {"errors": errors, "written": written, "earlier": earlier, "shapes": shapes}


def expected_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of the full weights."""
    return {name: tuple(value.shape) for name, value in models.tied().state_dict().items()}


def saved_persistent_on_rank_0(precision: dict[str, Any], folder: str) -> dict[str, Any]:
    """Save a state dict on rank 0 alone, train on, load it everywhere and train again."""
    persistent = {"stage3_param_persistence_threshold": 100_000}
    settings = config(3, zero=persistent, optimizer=SGD, **precision)
    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    window(engine, 0)
    file = Path(folder) / "model.pt"
    if dist.get_rank() == 0:
        torch.save(engine.module.state_dict(), file)
    first = [window(engine, step) for step in (1, 2)]
    loaded = torch.load(file)
    engine.module.load_state_dict(loaded)
    again = [window(engine, step) for step in (1, 2)]
    full = {name: tuple(value.shape) for name, value in loaded.items()} == expected_shapes()
    engine.destroy()
    return {"full": full, "first": first, "again": again}
