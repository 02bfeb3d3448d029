"""Reward functions that a training program loads by name."""

from typing import Any


def length_of(completions: list[Any], **_: Any) -> list[float]:
    """Return a number for each completion that depends on its length."""
    return [float(len(str(completion)) % 7) for completion in completions]
