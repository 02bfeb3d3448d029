"""Jobs with configs and models whose layers cannot be split. Each function runs on every rank."""

from typing import Any

import dsengine
from training import tensor_jobs
from training.sequence_jobs import divided_model


def refused(
    kind: str, block: dict[str, Any], more: dict[str, Any] | None = None, sequence: int = 1
) -> str:
    """Return the error of ``initialize``; ``sequence``: the ranks of an ``mpu``."""
    config = tensor_jobs.config_of(kind, 1, 2)
    config["tensor_parallel"] |= block
    config |= more or {}
    model, mpu = tensor_jobs.model_of(kind), None
    if sequence > 1:
        model, mpu = divided_model(kind, sequence)
    try:
        engine, *_ = dsengine.initialize(model=model, config=config, mpu=mpu)
    except ValueError as error:
        return str(error)
    engine.destroy()
    return ""


def samples_of_loader() -> list[Any]:
    """Return what the loader of this rank yields, and the batch sizes of the engine."""
    model = tensor_jobs.model_of("rules")
    config = tensor_jobs.config_of("rules", 1, 2)
    engine, *_ = dsengine.initialize(model=model, config=config)
    loader = engine.deepspeed_io(list(range(8)), route="eval")
    found = [batch.tolist() for batch in loader]
    sizes = engine.get_batch_info()
    engine.destroy()
    return [found, sizes]


def of_tp_model_init(size: int, block: dict[str, Any]) -> str:
    """Return the degree of an engine after ``tp_model_init``, or the error of ``initialize``."""
    model = dsengine.tp_model_init(tensor_jobs.model_of("rules"), size, None)
    config = tensor_jobs.config_of("rules", 1, 2)
    config["tensor_parallel"] |= block
    try:
        engine, *_ = dsengine.initialize(model=model, config=config)
    except ValueError as error:
        return str(error)
    finally:
        dsengine.tp_model_init(model, 1, None)
    found = str(engine.mp_world_size)
    engine.destroy()
    return found
