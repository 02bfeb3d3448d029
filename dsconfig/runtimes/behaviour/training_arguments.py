"""TrainingArguments as transformers would hold them, from what is known of the run."""

from dataclasses import dataclass
from math import ceil
from typing import Any

from dsconfig.facts import Facts
from dsconfig.facts.from_training_args import DEFAULTS
from dsconfig.runtimes.behaviour.outcome import MissingFact


@dataclass(frozen=True, slots=True)
class Arguments:
    """Values by TrainingArguments' names; ``steps`` is None where the length is unknown."""

    held: dict[str, Any]
    world_size: int
    steps: int | None

    def __getitem__(self, name: str) -> Any:
        return self.held[name]

    def switch(self, dtype: str) -> bool:
        """The training flag or the evaluation flag of a dtype: either counts."""
        return self.held[dtype] or self.held[f"{dtype}_full_eval"]

    @property
    def mixed_precision(self) -> str:
        return "fp16" if self.held["fp16"] else "bf16" if self.held["bf16"] else "no"

    def warmup(self, path: str) -> int:
        """Warmup in steps: a number of at least 1 as it is, below 1 a share of the run."""
        given = self.held["warmup_steps"]
        if given >= 1:
            return int(given)
        return ceil(self.total(path) * given) if given else 0

    def total(self, path: str) -> int:
        if self.steps is None:
            raise MissingFact(
                path,
                "the number of optimizer steps is unknown",
                "give --total-steps, or max_steps in --training-args",
            )
        return self.steps


def arguments(facts: Facts) -> Arguments:
    """Raises MissingFact when the number of processes is unknown."""
    if facts.world_size is None:
        raise MissingFact("", "the number of processes is unknown", "give --gpus")
    training = facts.training
    held: dict[str, Any] = dict(DEFAULTS)
    if training is not None:
        held.update(_from_flags(facts))
        held.update(training.arguments)
    steps = held.get("num_training_steps")
    if steps is None:
        steps = held["max_steps"] if held.get("max_steps", -1) > 0 else None
    if steps is None and training is not None:
        steps = training.total_steps
    return Arguments(held, facts.world_size, steps)


def _from_flags(facts: Facts) -> dict[str, Any]:
    """Arguments for which there is a flag of ours."""
    training = facts.training
    assert training is not None  # asked only where there is one
    given: dict[str, Any] = {
        "per_device_train_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "learning_rate": training.learning_rate,
        "adam_epsilon": training.adam_epsilon,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "warmup_steps": training.warmup_steps,
    }
    if training.adam_betas is not None:
        given["adam_beta1"], given["adam_beta2"] = training.adam_betas
    if training.precision in ("fp16", "bf16"):
        given[training.precision] = True
    return {name: value for name, value in given.items() if value is not None}
