"""Jobs that save, load and read models whose experts are divided over ranks."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dsengine
from dsengine.deepspeed.tensor_fragment import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_set_full_fp32_param,
)
from dsengine.sharding.zero.gathered import GatheredParameters
from engine_storage.jobs.sequence_layouts import digests
from training import expert_jobs


def built(stage: int, experts: int, kind: str, more: dict[str, Any] | None = None) -> Any:
    config = expert_jobs.config_of(kind, stage, experts) | (more or {})
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    return dsengine.initialize(model=expert_jobs.model_of(kind), config=config)[0]


def trained(engine: Any, steps: int, kind: str) -> None:
    for step in range(steps):
        engine.backward(expert_jobs.micro_batch_loss(engine, kind, step))
        engine.step()


def continued(
    stage: int, experts: int, kind: str, *, load: str = "", save: str = ""
) -> dict[str, Any]:
    """Load, train two steps and save; return the digests of weights and moments around this."""
    engine = built(stage, experts, kind)
    try:
        if load:
            engine.load_checkpoint(load)
        result: dict[str, Any] = {"before": digests(engine)} if load else {}
        trained(engine, 2, kind)
        if save:
            engine.save_checkpoint(save)
        return result | {"after": digests(engine)}
    finally:
        engine.destroy()


def whole(stage: int, kind: str, folder: str) -> list[str]:
    """Return what differs from the undivided model, in the ways to read full weights."""
    engine = built(stage, 2, kind)
    before = expert_jobs.model_of(kind).state_dict()
    wrong: list[str] = []

    def compare(what: str, found: Any) -> None:
        names = found.keys() & before.keys()
        wrong.extend(
            f"{what}: {name}" for name in names if not torch.equal(found[name], before[name])
        )
        if len(names) < len(before):
            wrong.append(f"{what}: {sorted(before.keys() - names)} missing")

    named = dict(engine.module.named_parameters())
    compare("safe_get_full_fp32_param", {n: safe_get_full_fp32_param(p) for n, p in named.items()})
    with GatheredParameters(list(named.values())):
        compare("GatheredParameters", {n: p.detach().clone() for n, p in named.items()})
    if kind in expert_jobs.KINDS:  # others have the names of checkpoints
        compare("iter_weights", {n: weight.clone() for n, weight in engine.iter_weights()})
    engine.save_16bit_model(folder)
    if dist.get_rank() == 0:
        from safetensors.torch import load_file

        saved: dict[str, Any] = {}
        for file in Path(folder).glob("*.safetensors"):
            saved |= load_file(file)
        compare("save_16bit_model", saved)
    dist.barrier()
    changed = {name: value + 1 for name, value in before.items()}
    engine.load_state_dict(changed)
    before |= changed
    compare("load_state_dict", {n: safe_get_full_fp32_param(p) for n, p in named.items()})
    engine.load_pretrained(folder)
    before |= expert_jobs.model_of(kind).state_dict()
    compare("load_pretrained", {n: safe_get_full_fp32_param(p) for n, p in named.items()})
    engine.destroy()
    return wrong


def written(stage: int, kind: str) -> list[float]:
    """Write weights and read gradients; return the largest differences from one process."""
    engine = built(stage, 2, kind)
    named = dict(engine.module.named_parameters())
    name, *_, other = (each for each in named if ".experts." in each)
    with GatheredParameters([named[name]], modifier_rank=0):
        if dist.get_rank() == 0:
            named[name].data.mul_(2)
    full = safe_get_full_fp32_param(named[other])
    assert full is not None
    safe_set_full_fp32_param(named[other], full * 3)
    one: Any = expert_jobs.model_of(kind)
    with torch.no_grad():
        one.get_parameter(name).mul_(2)
        one.get_parameter(other).mul_(3)
    world = dist.get_world_size()
    for number in range(world):
        (expert_jobs.micro_batch_loss(one, kind, number) / world).backward()
    engine.backward(expert_jobs.micro_batch_loss(engine, kind, dist.get_rank()))
    differences: list[float] = []
    for each, parameter in named.items():
        gradient = safe_get_full_grad(parameter)
        assert gradient is not None, each
        differences.append((gradient - one.get_parameter(each).grad).abs().max().item())
    engine.destroy()
    return differences


def again(first: int, second: int, kind: str) -> bool:
    """Divide and train a model, then train it undivided; return whether its weights were kept."""
    engine = built(first, 2, kind)
    trained(engine, 1, kind)
    expected = digests(engine)
    model = engine.module
    engine.destroy()
    config = expert_jobs.config_of(kind, second, 1)
    engine, *_ = dsengine.initialize(model=model, config=config)
    same = all(found[0] == expected[name][0] for name, found in digests(engine).items())
    trained(engine, 1, kind)
    engine.destroy()
    return same
