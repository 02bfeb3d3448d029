"""Jobs that compare the process before, between and after engines."""

import gc
from abc import ABC, abstractmethod
from contextlib import redirect_stderr
from importlib import import_module
from io import StringIO
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import DTensor

import dsengine
from dsengine import topology
from dsengine.observation.printing import logger, script_logger
from training import sequence_jobs, tensor_jobs


def state() -> dict[str, Any]:
    """Return what engines change in their process."""
    current = topology.current()
    handlers: Any = DTensor._op_dispatcher._custom_op_handlers  # pyright: ignore
    return {
        "sizes": [current.size(name) for name in ("samples", "tensor", "sequence")],
        "split losses": torch.ops.aten._log_softmax.default in handlers,
        "attention": _attention(),
        "collects garbage": gc.isenabled(),
        "log levels": [logger.level, script_logger.level],
    }


def _attention() -> Any:
    try:
        functions: Any = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    except ImportError:
        return None
    return str(functions["sdpa"]).partition(" at ")[0]


def _split(kind: str, stage: int) -> Any:
    config = tensor_jobs.config_of(kind, stage, 2)
    config["disable_python_gc"] = True
    config["log_level"] = "error"
    if kind == "causal":
        config["tensor_parallel"]["vocab_parallel_lm_head"] = True
    engine, *_ = dsengine.initialize(model=tensor_jobs.model_of(kind), config=config)
    return engine


def _divided(kind: str, stage: int) -> Any:
    config = sequence_jobs.settings(stage, 1, "AdamW", 0.5) | {"sequence_parallel_size": 2}
    model = sequence_jobs.model_of(kind, divided=True)
    return dsengine.initialize(model=model, config=config)[0]


def engines_in_a_row(kind: str, stage: int, divides: str) -> dict[str, Any]:
    """Train two engines one after the other, then build two and destroy the first one first."""
    start = _split if divides == "tensor" else _divided
    before, inside, after = state(), [], []
    for _ in range(2):
        engine = start(kind, stage)
        sequence = engine.topology.size("sequence")
        engine.backward(tensor_jobs.micro_batch_loss(engine, kind, 0, sequence))
        engine.step()
        inside.append(state())
        engine.destroy()
        after.append(state())
    first, second = start(kind, stage), start(kind, stage)
    first.destroy()
    inside.append(state())
    second.destroy()
    after.append(state())
    return {"before": before, "inside": inside, "after": after}


def replaced() -> dict[str, Any]:
    """Take a model over, replace a method and an attribute of its engine, and destroy that."""
    model = torch.nn.Linear(8, 8)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3},
    }
    first, *_ = dsengine.initialize(model=model, config=config)
    second, *_ = dsengine.initialize(model=model, config=config)
    second.is_gradient_accumulation_boundary = lambda: True
    second.backward(second(torch.ones(1, 8, device=second.device)).sum())
    second.step()
    second.collate_fn = original = list
    with mock.patch.object(second, "collate_fn", tuple):
        patched = second.collate_fn
    found = {"steps": second.global_steps, "collates": [patched, second.collate_fn, original]}
    second.destroy()
    return {**found, "is stale": topology.current() is first.topology}


class Named(ABC):
    """A class of a program that an engine is mixed with."""

    @abstractmethod
    def name(self) -> str: ...


class OwnEngine(dsengine.Engine, Named):
    """A subclass that extends a method of the table."""

    def name(self) -> str:
        return "own"

    def train_batch_size(self) -> int:
        above: Any = super()
        return 100 + above.train_batch_size()


def extended() -> dict[str, Any]:
    """Return what a subclass, a replaced optimizer and a model with own attributes give."""
    model: Any = torch.nn.Linear(8, 8)
    model.gradients = "of the model"
    started: Any = dsengine.initialize(
        model=model,
        config={
            "train_micro_batch_size_per_gpu": 1,
            "steps_per_print": 1,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        },
    )
    engine, optimizer, *_ = started
    engine.optimizer = SimpleNamespace(param_groups=[{"lr": 0.25}], step=optimizer.step)
    engine.backward(engine(torch.ones(1, 8, device=engine.device)).sum())
    printed = StringIO()
    with redirect_stderr(printed):
        engine.step()
    engine.__class__ = OwnEngine
    found = {
        "name": engine.name(),
        "batch": engine.train_batch_size() - engine.plan.batch.global_batch,
        "gradients": engine.gradients,
        "shows lr": "lr=[0.25]" in printed.getvalue() or torch.distributed.get_rank() > 0,
        "shows class": hasattr(OwnEngine, "zero_optimization_stage"),
    }
    engine.destroy()
    return found
