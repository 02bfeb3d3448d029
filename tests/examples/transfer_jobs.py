"""Jobs that run the examples of weight transfer with stand-ins. Each runs on every rank."""

import inspect
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from examples.stand_ins import verl, vllm
from training.export_jobs import built, different
from training.jobs import config, window

FOLDER = Path(__file__).parents[2] / "examples"
MODULES: dict[str, ModuleType] = {
    **dict.fromkeys(
        (
            *("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"),
            "vllm.distributed.weight_transfer.base",
            "vllm.distributed.weight_transfer.nccl_engine",
        ),
        vllm,
    ),
    **dict.fromkeys(
        ("verl", "verl.workers", "verl.workers.engine", "verl.workers.engine.base"), verl
    ),
}
SETTINGS = config(3, zero={"stage3_gather_16bit_weights_on_model_save": True})


@contextmanager
def example(name: str) -> Iterator[dict[str, Any]]:
    """Yield the names that an example defines, with stand-ins in place of packages."""
    sys.modules.update(MODULES)
    try:
        yield runpy.run_path(str(FOLDER / f"{name}.py"))
    finally:
        for module in MODULES:
            del sys.modules[module]


def _saved(engine: Any, folder: str, step: int) -> dict[str, Tensor]:
    engine.save_16bit_model(f"{folder}/{step}")
    dist.barrier()
    return load_file(Path(folder) / str(step) / "model.safetensors")


def source(folder: str) -> list[str]:
    """Send twice, with a step between; return differences from the saved weights."""
    found: list[str] = []
    with example("vllm_source") as names:
        engine = built(SETTINGS, steps=1)
        transfer = names["connect"](engine, "http://localhost:8000", "127.0.0.1", 29500, workers=2)
        for step in (1, 2):
            names["update"](transfer)
            saved = _saved(engine, folder, step)
            if dist.get_rank() == 0:
                found += different(transfer.group.received(transfer.client.info), saved)
            window(engine, step)
        found += [call for call in transfer.client.calls if dist.get_rank() == 1]
        engine.destroy()
    return found


def send(folder: str) -> list[str]:
    """Send twice, with a step between; return differences from the saved weights."""
    found: list[str] = []
    with example("vllm_send") as names:
        engine = built(SETTINGS, steps=1)
        for step in (1, 2):
            group = vllm.Group() if dist.get_rank() == 0 else None
            names["send"](engine, group)
            saved = _saved(engine, folder, step)
            if group is not None:
                found += different(group.received(names["update_info"](engine)), saved)
            window(engine, step)
        engine.destroy()
    return found


def rollout(folder: str) -> dict[str, Any]:
    """Update a rollout twice; return differences from the saved weights."""
    from training import models

    found: list[str] = []
    with example("verl_engine"):
        kind = verl.EngineRegistry.engines[("language_model", "dsengine", "cpu")]
        actor: Any = kind(models.tied(), SETTINGS)  # type: ignore[call-arg]
        actor.initialize()
        for step in (1, 2):
            weights, peft_config = actor.get_per_tensor_param(
                layered_summon=True, base_sync_done=True
            )
            assert peft_config is None
            found += different(dict(weights), _saved(actor.engine, folder, step))
            window(actor.engine, step)
        offloads = (actor.is_param_offload_enabled, actor.is_optimizer_offload_enabled)
        actor.engine.destroy()
    return {"different": found, "offloads": offloads}


def adapter_rollout() -> dict[str, Any]:
    """Pass only an adapter of peft to a rollout; return its names and the errors."""
    from training.adapter_jobs import adapted, settings

    with example("verl_engine") as names:
        actor = names["DSEngine"](adapted("linear"), settings(3), sends_adapter=True)
        actor.initialize()
        weights, peft_config = actor.get_per_tensor_param(base_sync_done=True)
        exported = [name for name, _ in weights]
        error = ""
        try:
            actor.get_per_tensor_param(base_sync_done=False)
        except ValueError as raised:
            error = str(raised)
        actor.engine.destroy()
    return {"names": exported, "rank": peft_config.r, "error": error}


def parameters() -> list[str]:
    """Return the parameters of the method that verl calls."""
    with example("verl_engine") as names:
        return list(inspect.signature(names["DSEngine"].get_per_tensor_param).parameters)
