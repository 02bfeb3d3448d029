"""One step of small models that ranks divide, on ranks and in one process."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import dsengine
from frameworks.family_sweep import HEADS, error_text
from plans.models import Inputs, inputs_of, loss_on, sequences_of, small_model
from training.sequence_jobs import LENGTH, parts

RATE, TOLERANCE = 0.1, 1e-5
STAGES = (1, 3)
Step = tuple[list[float], dict[str, torch.Tensor]]
"""Losses before and after the step with the gradient norm between, and the weights."""
Loss = Callable[[Any], torch.Tensor]
"""Returns the loss of a model."""


def outcome(family: str, axis: str, *, dropout: bool) -> tuple[str, str]:
    """Return one of the kinds of ``sweep`` and the reason: those of the first stage that is not
    ``equal``, else of the last one.

    A sample whose sequence is divided ends in padding at the last stage.
    """
    warnings.simplefilter("ignore")
    kind, why = "equal", ""
    for stage in STAGES:
        padded = stage == STAGES[-1]
        kind, why = _outcome(family, stage, axis, padded=padded, dropout=dropout)
        if kind != "equal":
            break
    return kind, why


def _outcome(family: str, stage: int, axis: str, *, padded: bool, dropout: bool) -> tuple[str, str]:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    mixed, is_sequence = axis == "expert", axis in HEADS

    def build() -> Any:
        return small_model(family, mixed=mixed, axis=axis, dropout=dropout)

    try:
        model = build()
    except Exception as error:
        return "not built", error_text(error)
    try:
        inputs = sequences_of(model, axis, padded=padded) if is_sequence else inputs_of(model)
    except Exception as error:
        return "no inputs", error_text(error.__cause__ or error)
    # Ranks that share experts have different samples.
    samples = [_shifted(inputs, number) for number in range(ranks if mixed else 1)]
    own = _own_part(inputs) if is_sequence else samples[rank if mixed else 0]
    try:
        if dropout and axis == "tensor":
            expected = _from_first_rank(_divided(build(), _loss(axis, own, 0), stage, axis))
        else:
            losses = [_loss(axis, inputs, seed) for seed, inputs in enumerate(samples)]
            expected = _one_process(model, losses)
        if dropout and not _draws(axis, own, build()):
            return "not random", "its forward draws no random numbers"
        found = _divided(build(), _loss(axis, own, rank), stage, axis)
    except ValueError as error:
        lines = str(error).strip().splitlines()
        line = next((line for line in lines if "DSC" in line), lines[-1])
        return "refused", line.strip().partition(": write ")[0]
    worst = float(torch.tensor(differences(found, expected)).max())  # nan if one is
    return "equal" if worst < TOLERANCE else "different", f"{worst:.1e}"


def _shifted(inputs: Inputs, places: int) -> Inputs:
    return {name: value.roll(places, -1) for name, value in inputs.items()}


def _own_part(inputs: Inputs) -> Inputs:
    """Return this rank's part of sequences, beside other inputs such as audio."""
    divided = {name: value for name, value in inputs.items() if value.shape[1] == LENGTH}
    return inputs | dict(parts(divided, dist.get_world_size()))


def _loss(axis: str, inputs: Inputs, seed: int) -> Loss:
    """Return the loss of a sample, whose forward draws random numbers from ``seed``."""

    def loss(model: Any) -> torch.Tensor:
        torch.manual_seed(seed)
        return loss_on(axis)(model, inputs)

    return loss


def _draws(axis: str, inputs: Inputs, model: Any) -> bool:
    """Return whether a forward draws random numbers."""
    _loss(axis, inputs, 0)(model)
    drawn = torch.get_rng_state()
    return not torch.equal(drawn, torch.manual_seed(0).get_state())


def _from_first_rank(step: Step) -> Step:
    steps = [step]
    dist.broadcast_object_list(steps)
    return steps[0]


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


def _one_process(model: Any, losses: list[Loss]) -> Step:
    before = sum(_backward(loss(model) / len(losses)) for loss in losses)
    trained = [p for p in model.parameters() if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in trained]))
    with torch.no_grad():
        for parameter in trained:
            parameter -= RATE * parameter.grad
    after = sum(loss(model).item() for loss in losses) / len(losses)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return [before, norm.item(), after], weights


def _backward(loss: torch.Tensor) -> float:
    loss.backward()
    return loss.item()


def _divided(model: Any, loss_of: Loss, stage: int, axis: str) -> Step:
    ranks = dist.get_world_size()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": RATE}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    if axis == "tensor":
        config["tensor_parallel"] = {"autotp_size": ranks}
    elif axis in HEADS:
        config["sequence_parallel_size"] = ranks
    else:
        config["expert_parallel"] = {"enabled": True, "autoep_size": ranks}
    engine, *_ = dsengine.initialize(model=model, config=config)
    try:
        loss = loss_of(engine)
        engine.backward(loss)
        engine.step()
        losses = torch.stack([loss.detach(), loss_of(engine).detach()])
        dist.all_reduce(losses)
        before, after = (losses / ranks).tolist()
        norm = float(engine.get_global_grad_norm() or 0.0)
        named = dict(engine.module.named_parameters())
        with dsengine.zero.GatheredParameters(list(named.values())):
            weights = {name: parameter.detach().clone() for name, parameter in named.items()}
        return [before, norm, after], weights
    finally:
        engine.destroy()
