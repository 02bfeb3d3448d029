"""Copies and pickles of the modules of engines. Each function runs on every rank."""

import copy
import io
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import dsengine
from dsengine.deepspeed.weights import clone_tensors_for_torch_save
from training import axes, contract_jobs, models, sequence_jobs
from training.jobs import window


def started(settings: dict[str, Any]) -> Any:
    return dsengine.initialize(model=models.tied(), config=settings)[0]


def copied(settings: dict[str, Any]) -> tuple[bool, bool, bool]:
    """Check that a deep copy is an ordinary module with the same output and trains no shard."""
    engine = started(settings)
    window(engine, 0)
    twin = copy.deepcopy(engine.module)
    batch = models.batch(1, 0, 0)
    same = torch.equal(twin(batch), engine.module(batch))
    tied = twin.head.weight is twin.tokens.weight
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin.load_state_dict(twin.state_dict())
    window(engine, 1)
    alive = float(engine.module.head.weight.abs().sum()) > 0
    engine.destroy()
    return same, tied, alive


def pickled(settings: dict[str, Any]) -> tuple[str, bool, bool]:
    """Return the class of a pickled model, and whether its outputs and tied weights are the same.

    At stage 3 it is gathered.
    """
    engine = started(settings)
    window(engine, 0)
    buffer = io.BytesIO()
    with dsengine.zero.GatheredParameters(list(engine.module.parameters())):
        torch.save(engine.module, buffer)
    buffer.seek(0)
    twin = torch.load(buffer, weights_only=False)
    batch = models.batch(1, 0, 0)
    same = torch.equal(twin(batch), engine.module(batch))
    engine.destroy()
    return type(twin).__name__, same, twin.head.weight is twin.tokens.weight


def copies_of_divided_model(axis: str, stage: int) -> dict[str, Any]:
    """Return the errors of copying a model with parts, and the largest difference of the outputs of
    copies of the gathered model from its own."""
    engine = axes.started(axis, stage)
    axes.window(engine, 0)
    batch, model = axes.inputs(engine), engine.eval().module
    with torch.no_grad():
        expected = model(**batch)
    engine.sharding.release()
    result: dict[str, Any] = {"errors": []}
    for refused in (copy.deepcopy, pickle.dumps, lambda m: torch.save(m, io.BytesIO())):
        try:
            refused(model)
        except RuntimeError as error:
            result["errors"].append(str(error))
    with dsengine.zero.GatheredParameters(list(model.parameters())):
        twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    with torch.no_grad():
        result["differences"] = [float((t(**batch) - expected).abs().max()) for t in twins]
    result["plain"] = all(type(p) is nn.Parameter for twin in twins for p in twin.parameters())
    engine.train()
    axes.window(engine, 1)
    engine.destroy()
    return result


def copies_of_divided_samples(stage: int) -> tuple[float, str]:
    """Return the difference of a copy's outputs from the model's, and the class of a loaded one,
    both computed by the first rank alone."""
    config = sequence_jobs.settings(stage, 1, "SGD", 0.5) | {"sequence_parallel_size": 2}
    engine, *_ = dsengine.initialize(model=contract_jobs.OwnConfig(), config=config)
    batch, model = axes.inputs(engine), engine.module
    expected = engine(**batch).detach()
    found = 0.0, ""
    if dist.get_rank() == 0:
        twin, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        found = float((twin(**batch) - expected).abs().max()), type(loaded).__name__
    engine.destroy()
    return found


def cloned_state(axis: str, stage: int) -> bool:
    """Return whether a cloned state dict of a model with parts is that of the gathered one."""
    engine = axes.started(axis, stage)
    state = clone_tensors_for_torch_save(engine.module.state_dict())
    with dsengine.zero.GatheredParameters(list(engine.module.parameters())):
        full = copy.deepcopy(engine.module).state_dict()
    engine.destroy()
    return all(type(v) is torch.Tensor and torch.equal(v, full[n]) for n, v in state.items())
