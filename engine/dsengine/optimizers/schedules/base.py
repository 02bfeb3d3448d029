"""Common base of DeepSpeed's learning-rate schedules."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class Schedule(ABC):
    """A learning rate per parameter group as a function of the number of steps.

    The only state is ``last_batch_iteration``, the number of calls of step() minus one. The
    optimizer's own state preserves the rate when a run resumes.
    """

    def __init__(self, optimizer: Optimizer, last_batch_iteration: int) -> None:
        self.optimizer = optimizer
        self.last_batch_iteration: int = last_batch_iteration
        self._last_lr: list[float] | None = None

    @abstractmethod
    def get_lr(self) -> list[float]:
        """Return the rates at ``last_batch_iteration``."""

    def get_last_lr(self) -> list[float]:
        """Return the last rates set. Raises AssertionError before any, as callers expect."""
        if self._last_lr is None:
            raise AssertionError("no learning rate has been set yet: need to call step() first")
        return self._last_lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Advance by one step, or to ``last_batch_iteration``, and set the rates."""
        following = self.last_batch_iteration + 1
        self.last_batch_iteration = (
            following if last_batch_iteration is None else last_batch_iteration
        )
        self.set_lr(self.get_lr())

    def set_lr(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            assign_lr(group, rate)
        self._last_lr = list(rates)

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last_batch_iteration = state["last_batch_iteration"]


def groups_of(optimizer: Optimizer | None) -> list[dict[str, Any]]:
    """Return the parameter groups; none without an optimizer."""
    return [] if optimizer is None else optimizer.param_groups


def learning_rates(optimizer: Optimizer | None) -> list[float]:
    """Return the rate of each parameter group."""
    return [group["lr"] for group in groups_of(optimizer)]


def momenta(optimizer: Optimizer | None) -> list[Any]:
    """Return the momentum, or the betas, of each parameter group."""
    return [group.get("betas", group.get("momentum")) for group in groups_of(optimizer)]


def assign_lr(group: dict[str, Any], rate: float) -> None:
    """Set the rate of a parameter group; a tensor is updated in place."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def current_lrs(optimizer: Optimizer) -> list[float]:
    """Return the current rate of each group as a float, also if it is a tensor."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def per_group(optimizer: Optimizer, value: float | Sequence[float], name: str) -> list[float]:
    """Return one value per parameter group. Raises ValueError if a list has another length."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, Sequence):
        return [value] * groups
    if len(value) != groups:
        raise ValueError(f"{name} has {len(value)} values for {groups} parameter groups")
    return list(value)


def pairs(low: Sequence[float], high: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Iterate over the bounds of each group."""
    return zip(low, high, strict=True)


def positive_integer(value: object, name: str) -> int:
    """Return a valid number of steps. Raises ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name} must be a positive integer, got {value}")
    return value
