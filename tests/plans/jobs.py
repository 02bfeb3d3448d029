"""One step of small models that ranks divide, on ranks and in one process."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import dsengine
from frameworks.family_sweep import error_text
from plans.models import Inputs, inputs_of, loss_of, sequences_of, small_model, token_loss
from training.sequence_jobs import parts

RATE, TOLERANCE = 0.1, 1e-5
Step = tuple[list[float], dict[str, torch.Tensor]]
"""Losses before and after the step with the gradient norm between, and the weights."""
Loss = Callable[[Any, Inputs], torch.Tensor]


def outcome(
    family: str, stage: int, axis: str = "tensor", *, padded: bool = False
) -> tuple[str, str]:
    """Return one of the kinds of ``sweep`` and the reason.

    ``padded``: a sample whose sequence is divided ends in padding.
    """
    warnings.simplefilter("ignore")
    ranks, mixed, sequence = dist.get_world_size(), axis == "expert", axis == "sequence"
    try:
        model = small_model(family, mixed=mixed, causal=sequence)
    except Exception as error:
        return "not built", error_text(error)
    try:
        inputs = sequences_of(model, padded=padded) if sequence else inputs_of(model)
    except Exception as error:
        return "no inputs", error_text(error.__cause__ or error)
    # Ranks that share experts have different samples.
    samples = [_shifted(inputs, rank) for rank in range(ranks if mixed else 1)]
    loss = token_loss if sequence else loss_of
    expected = _one_process(model, samples, loss)
    try:
        model = small_model(family, mixed=mixed, causal=sequence)
        own = samples[dist.get_rank() if mixed else 0]
        found = _divided(model, dict(parts(own, ranks)) if sequence else own, stage, axis, loss)
    except ValueError as error:
        lines = str(error).strip().splitlines()
        line = next((line for line in lines if "DSC" in line), lines[-1])
        return "refused", line.strip().partition(": write ")[0]
    worst = float(torch.tensor(differences(found, expected)).max())  # nan if one is
    return "equal" if worst < TOLERANCE else "different", f"{worst:.1e}"


def _shifted(inputs: Inputs, places: int) -> Inputs:
    return {name: value.roll(places, -1) for name, value in inputs.items()}


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


def _one_process(model: Any, samples: list[Inputs], loss_of: Loss) -> Step:
    before = sum(_backward(loss_of(model, inputs) / len(samples)) for inputs in samples)
    trained = [p for p in model.parameters() if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in trained]))
    with torch.no_grad():
        for parameter in trained:
            parameter -= RATE * parameter.grad
    after = sum(loss_of(model, inputs).item() for inputs in samples) / len(samples)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return [before, norm.item(), after], weights


def _backward(loss: torch.Tensor) -> float:
    loss.backward()
    return loss.item()


def _divided(model: Any, inputs: Inputs, stage: int, axis: str, loss_of: Loss) -> Step:
    ranks = dist.get_world_size()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": RATE}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    if axis == "tensor":
        config["tensor_parallel"] = {"autotp_size": ranks}
    elif axis == "sequence":
        config["sequence_parallel_size"] = ranks
    else:
        config["expert_parallel"] = {"enabled": True, "autoep_size": ranks}
    engine, *_ = dsengine.initialize(model=model, config=config)
    try:
        loss = loss_of(engine, inputs)
        engine.backward(loss)
        engine.step()
        losses = torch.stack([loss.detach(), loss_of(engine, inputs).detach()])
        dist.all_reduce(losses)
        before, after = (losses / ranks).tolist()
        norm = float(engine.get_global_grad_norm() or 0.0)
        named = dict(engine.module.named_parameters())
        with dsengine.zero.GatheredParameters(list(named.values())):
            weights = {name: parameter.detach().clone() for name, parameter in named.items()}
        return [before, norm, after], weights
    finally:
        engine.destroy()
