"""Jobs that pass wrong arguments to ``initialize``."""

from typing import Any

from torch import nn

import dsengine
from dsengine.loop.misuse import ArgumentError
from training.jobs import config


class DegreeOfText:
    """An ``mpu`` that returns a text for a number."""

    def get_model_parallel_world_size(self) -> str:
        return "two"


def _nothing(argument: Any) -> None:
    """Return no optimizer or schedule."""


def refusals_of_results() -> list[str]:
    """Return the errors for functions that return something else."""
    found = []
    values = {"optimizer": _nothing, "lr_scheduler": _nothing, "mpu": DegreeOfText()}
    for name, value in values.items():
        try:
            dsengine.initialize(model=nn.Linear(2, 2), config=config(1), **{name: value})
        except ArgumentError as error:
            found.append(str(error))
    return found


def started_from_file(name: str) -> None:
    options: dict[str, Any] = {name: "none.json"}
    dsengine.initialize(model=nn.Linear(2, 2), **options)
