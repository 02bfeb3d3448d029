"""Jobs that save, load and read models whose layers are split over ranks."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dsengine
from dsengine.deepspeed.parallel import GatherReplacedLayerParams
from dsengine.deepspeed.tensor_fragment import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_set_full_fp32_param,
)
from dsengine.sharding.zero.gathered import GatheredParameters
from engine_storage.jobs.sequence_layouts import digests
from training import tensor_jobs
from training.sequence_jobs import Curve, model_of, sample_batch, token_losses


def built(
    stage: int,
    tensor: int = 1,
    sequence: int = 1,
    kind: str = "qwen 3",
    factor: float = 1.0,
    dropout: float = 0.0,
    more: dict[str, Any] | None = None,
) -> Any:
    """Return an engine; ``factor`` multiplies the model's first weights."""
    config = tensor_jobs.config_of(kind, stage, tensor) | (more or {})
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    if sequence > 1:
        config["sequence_parallel_size"] = sequence
    model = tensor_jobs.model_of(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    module: Any
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = dropout
    return dsengine.initialize(model=model, config=config)[0]


def trained(
    engine: Any, steps: int, sequence: int = 1, kind: str = "qwen 3", first: int = 0
) -> Curve:
    """Train from step ``first``; return mean losses and gradient norms."""
    curve: Curve = []
    for step in range(first, first + steps):
        loss = tensor_jobs.micro_batch_loss(engine, kind, step, sequence)
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        curve.append((total.item() / dist.get_world_size(), engine.get_global_grad_norm() or 0.0))
    return curve


def continued(
    stage: int,
    tensor: int = 1,
    sequence: int = 1,
    *,
    kind: str = "qwen 3",
    load: str = "",
    save: str = "",
) -> dict[str, Any]:
    """Load, train two steps and save; return the digests of weights and moments around this."""
    engine = built(stage, tensor, sequence, kind)
    try:
        if load:
            engine.load_checkpoint(load)
        result: dict[str, Any] = {"before": digests(engine)} if load else {}
        trained(engine, 2, sequence, kind)
        if save:
            engine.save_checkpoint(save)
        return result | {"after": digests(engine)}
    finally:
        engine.destroy()


def resumed(
    stage: int,
    kind: str,
    folder: str,
    files: str = "own",
    dropout: float = 0.0,
    more: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Split layers and divide sequences: train four steps, save after two, and resume from there.

    ``files``: "own", "asynchronous" or "deepspeed". Return the curve, and what differs in the
    resumed run.
    """
    sequence = 2

    def start(factor: float) -> Any:
        engine = built(stage, 2, sequence, kind, factor, dropout, more)
        engine.checkpointer().for_deepspeed = files == "deepspeed"
        engine.checkpointer().asynchronous = files == "asynchronous"
        return engine

    engine = start(factor=1)
    curve = trained(engine, 2, sequence, kind)
    engine.save_checkpoint(folder, client_state={"epoch": 7})
    curve += trained(engine, 2, sequence, kind, first=2)
    end = digests(engine)
    engine.destroy()
    engine = start(factor=2)
    _, client = engine.load_checkpoint(folder)
    follows = trained(engine, 2, sequence, kind, first=2)
    same = {
        "epoch": (client or {}).get("epoch") == 7,
        "curve": follows == curve[2:],
        "states": digests(engine) == end,
    }
    engine.destroy()
    return {"curve": curve, "different": [name for name, equal in same.items() if not equal]}


def whole(stage: int, kind: str, folder: str, sequence: int = 1) -> list[str]:
    """Return what differs from the model before it was split, in the ways to read whole weights."""
    engine = built(stage, 2, sequence, kind)
    before = tensor_jobs.model_of(kind).state_dict()
    wrong: list[str] = []

    def compare(what: str, found: Any) -> None:
        names = found.keys() & before.keys()
        wrong.extend(
            f"{what}: {name}" for name in names if not torch.equal(found[name], before[name])
        )
        if len(names) < len(before):
            wrong.append(f"{what}: {sorted(before.keys() - names)} missing")

    named = dict(engine.module.named_parameters(remove_duplicate=False))
    compare("safe_get_full_fp32_param", {n: safe_get_full_fp32_param(p) for n, p in named.items()})
    with GatheredParameters(list(named.values())):
        compare("GatheredParameters", {n: p.detach().clone() for n, p in named.items()})
    consolidated = engine._zero3_consolidated_16bit_state_dict()
    if consolidated is not None:
        compare("consolidated", consolidated)
    compare("iter_weights", dict(engine.iter_weights(bucket_bytes=5000, names="module")))
    engine.save_16bit_model(folder)
    if dist.get_rank() == 0:
        from safetensors.torch import load_file

        saved: dict[str, Any] = {}
        for file in Path(folder).glob("*.safetensors"):
            saved |= load_file(file)
        names = before.keys() - saved.keys()  # tied weights are saved once
        compare("save_16bit_model", saved | {n: before[n] for n in names if n in engine_tied(kind)})
    dist.barrier()
    changed = {name: value + 1 for name, value in before.items()}
    engine.load_state_dict(changed)
    before |= changed
    compare("load_state_dict", {n: safe_get_full_fp32_param(p) for n, p in named.items()})
    engine.load_pretrained(folder)
    before |= tensor_jobs.model_of(kind).state_dict()
    compare("load_pretrained", {n: safe_get_full_fp32_param(p) for n, p in named.items()})
    engine.destroy()
    return wrong


def engine_tied(kind: str) -> set[str]:
    return {"lm_head.weight"} if kind == "gemma 3" else set()


def written(stage: int, sequence: int = 1) -> list[float]:
    """Write weights and read gradients whole; return the largest differences from one process."""
    kind = "qwen 3"
    one: Any = model_of(kind, divided=False)
    name, other = (
        next(each for each, _ in one.named_parameters() if each.endswith(f"{layer}.weight"))
        for layer in ("q_proj", "o_proj")
    )
    with torch.no_grad():
        one.get_parameter(name).mul_(2)
        one.get_parameter(other).mul_(3)
    replicas = dist.get_world_size() // 2 // sequence
    for replica in range(replicas):
        losses, count = token_losses(one, sample_batch(kind, replica))
        (losses / count / replicas).backward()
    engine = built(stage, 2, sequence)
    named = dict(engine.module.named_parameters())
    with GatheredParameters([named[name]], modifier_rank=0):
        if dist.get_rank() == 0:
            named[name].data.mul_(2)
    full = safe_get_full_fp32_param(named[other])
    assert full is not None
    safe_set_full_fp32_param(named[other], full * 3)
    engine.backward(tensor_jobs.micro_batch_loss(engine, kind, 0, sequence))
    differences: list[float] = []
    for each, parameter in named.items():
        gradient = safe_get_full_grad(parameter)
        assert gradient is not None, each
        differences.append((gradient - one.get_parameter(each).grad).abs().max().item())
    engine.destroy()
    return differences


def again(first: int, second: int, kind: str, sequence: int = 1) -> bool:
    """Split and train a model, then train it whole; return whether it had the trained weights."""
    engine = built(first, 2, sequence, kind)
    trained(engine, 1, sequence, kind)
    expected = digests(engine)
    model = engine.module
    engine.destroy()
    config = tensor_jobs.config_of(kind, second, 1)
    engine, *_ = dsengine.initialize(model=model, config=config)
    same = all(found[0] == expected[name][0] for name, found in digests(engine).items())
    trained(engine, 1, kind=kind)
    engine.destroy()
    return same


def replaced(stage: int) -> list[Any]:
    """Write a split weight inside ``GatherReplacedLayerParams``; return what is read then."""
    engine = built(stage, 2, kind="fused")
    parameter = engine.module.blocks[0].qkv.weight
    expected = tensor_jobs.model_of("fused").get_parameter("blocks.0.qkv.weight")
    with GatherReplacedLayerParams(parameter, engine.module):
        read = torch.equal(parameter.data, expected.data)
        parameter.data.mul_(2)
    full = safe_get_full_fp32_param(engine.module.blocks[0].qkv.weight)
    assert full is not None
    engine.destroy()
    return [read, torch.equal(full, expected.data * 2)]
