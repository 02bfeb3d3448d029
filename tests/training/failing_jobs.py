"""Jobs that raise the same clear error on every rank."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

import dsengine
from training import models
from training.jobs import config


def _raised(action: Any) -> str:
    try:
        action()
    except Exception as error:  # the message is returned
        kinds = " ".join(kind.__name__ for kind in type(error).__mro__[:-3])
        return f"{kinds}: {error}"
    return "nothing"


def different_configs() -> str:
    settings = config(1, gradient_clipping=1.0 + dist.get_rank())
    return _raised(lambda: dsengine.initialize(model=models.tied(), config=settings))


def different_models() -> str:
    model = models.tied(blocks=2 + dist.get_rank())
    return _raised(lambda: dsengine.initialize(model=model, config=config(1)))


def plan_for_another_world() -> str:
    engine, *_ = dsengine.initialize(model=models.tied(), config=config(2))
    plan = engine.plan
    engine.destroy()
    wrong = replace(plan, mesh=replace(plan.mesh, shard=8))
    return _raised(lambda: dsengine.initialize(model=models.tied(), plan=wrong))


def fewer_parameters_than_ranks(stage: int) -> list[float]:
    torch.manual_seed(0)
    engine, *_ = dsengine.initialize(model=nn.Linear(1, 1, bias=False), config=config(stage))
    losses = []
    for _ in range(3):
        loss = engine(torch.ones(2, 1)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.destroy()
    return losses


def no_config() -> str:
    return _raised(lambda: dsengine.initialize(model=models.tied()))


def unknown_optimizer() -> str:
    settings = config(1, optimizer={"type": "OneBitAdam", "params": {"lr": 1e-3}})
    return _raised(lambda: dsengine.initialize(model=models.tied(), config=settings))


def stray_parameter() -> str:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=0.1)
    return _raised(
        lambda: dsengine.initialize(model=models.tied(), config=config(2), optimizer=optimizer)
    )


def config_refused_on_one_rank() -> str:
    """Only one rank has an invalid config; all raise."""
    more: dict[str, Any] = {"zero": {"overlap_com": True}} if dist.get_rank() == 1 else {}
    return _raised(lambda: dsengine.initialize(model=models.tied(), config=config(1, **more)))


def no_config_on_one_rank() -> str:
    settings: dict[str, Any] = {"config": config(1)} if dist.get_rank() == 0 else {}
    return _raised(lambda: dsengine.initialize(model=models.tied(), **settings))


def plan_for_another_model(folder: str) -> str:
    engine, *_ = dsengine.initialize(model=models.tied(), config=config(2))
    path = Path(folder) / "tied.json"
    if dist.get_rank() == 0:
        path.write_text(engine.plan.to_json())
    engine.destroy()
    dist.barrier()
    return _raised(lambda: dsengine.initialize(model=models.tied(blocks=1), plan=path))


def different_plan_on_one_rank() -> str:
    """The plans differ only in the release whose defaults they use."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=config(2))
    mine = replace(engine.plan, release="0.19.7") if dist.get_rank() == 1 else engine.plan
    engine.destroy()
    return _raised(lambda: dsengine.initialize(model=models.tied(), plan=mine))


def plan_and_config() -> str:
    settings = config(2)
    return _raised(lambda: dsengine.initialize(model=models.tied(), config=settings, plan="p"))


def file_without_plan(folder: str) -> str:
    path = Path(folder) / f"ds.{dist.get_rank()}.json"
    path.write_text('{"train_batch_size": 8}')
    return _raised(lambda: dsengine.initialize(model=models.tied(), plan=path))


class TensorParallel:
    """An ``mpu`` like Megatron's."""

    @staticmethod
    def get_tensor_model_parallel_world_size() -> int:
        return 2


def mpu_with_tensor_parallelism() -> str:
    return _raised(
        lambda: dsengine.initialize(model=models.tied(), config=config(1), mpu=TensorParallel())
    )


def mesh_with_sequence_parallelism() -> str:
    return _raised(
        lambda: dsengine.initialize(model=models.tied(), config=config(1), mesh_param=(1, 2))
    )


def marked_parameter() -> str:
    model = models.tied()
    cast(Any, model.twice.weight).tensor_model_parallel = True
    return _raised(lambda: dsengine.initialize(model=model, config=config(0)))


def submodule_of_engine_model() -> str:
    """The engine has the full model, so its submodule cannot be restored alone."""
    outer = torch.nn.Sequential(model := models.tied())
    engine, *_ = dsengine.initialize(model=outer, config=config(2))
    engine.destroy()
    return _raised(lambda: dsengine.initialize(model=model, config=config(2)))
