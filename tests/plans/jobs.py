"""One step of small models whose layers are split, on ranks and in one process."""

import warnings
from typing import Any

import torch

import dsengine
from frameworks.families import loss_of
from frameworks.family_sweep import error_text
from plans.models import inputs_of, small_model

RATE, TOLERANCE = 0.1, 1e-5
Step = tuple[list[float], dict[str, torch.Tensor]]
"""Losses before and after the step with the gradient norm between, and the weights."""


def outcome(family: str, stage: int) -> tuple[str, str]:
    """Return one of the kinds of ``sweep`` and the reason."""
    warnings.simplefilter("ignore")
    try:
        model = small_model(family)
    except Exception as error:
        return "not built", error_text(error)
    try:
        inputs = inputs_of(model)
    except Exception as error:
        return "no inputs", error_text(error.__cause__ or error)
    expected = _one_process(model, inputs)
    try:
        found = _split(small_model(family), inputs, stage)
    except ValueError as error:
        lines = str(error).strip().splitlines()
        line = next((line for line in lines if "DSC" in line), lines[-1])
        return "refused", line.strip().partition(": write the rules")[0]
    worst = max(differences(found, expected))
    return "equal" if worst < TOLERANCE else "different", f"{worst:.1e}"


def differences(found: Step, expected: Step) -> list[float]:
    """Return relative differences: loss, norm, loss after the step, and each weight's update.

    Those of updates are relative to the largest weight.
    """
    (ours, our_weights), (theirs, weights) = found, expected
    largest = max(weight.abs().max() for weight in weights.values())
    updates = [(our_weights[name] - weight).abs().max() for name, weight in weights.items()]
    return [
        *(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)),
        float(max(updates) / largest),
    ]


def _one_process(model: Any, inputs: dict[str, torch.Tensor]) -> Step:
    loss = loss_of(model(**inputs))
    loss.backward()
    trained = [p for p in model.parameters() if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in trained]))
    with torch.no_grad():
        for parameter in trained:
            parameter -= RATE * parameter.grad
    after = loss_of(model(**inputs))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return [loss.item(), norm.item(), after.item()], weights


def _split(model: Any, inputs: dict[str, torch.Tensor], stage: int) -> Step:
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": RATE}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "tensor_parallel": {"autotp_size": torch.distributed.get_world_size()},
    }
    engine, *_ = dsengine.initialize(model=model, config=config)
    try:
        loss = loss_of(engine(**inputs))
        engine.backward(loss)
        engine.step()
        norm = float(engine.get_global_grad_norm() or 0.0)
        after = loss_of(engine(**inputs))
        named = dict(engine.module.named_parameters())
        with dsengine.zero.GatheredParameters(list(named.values())):
            weights = {name: parameter.detach().clone() for name, parameter in named.items()}
        return [loss.item(), norm, after.item()], weights
    finally:
        engine.destroy()
