"""Client state: plain data, and objects that can be converted to it."""

import argparse
from collections import UserDict
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from dsengine.checkpoints.small_states import dump, parse, to_plain


class Kind(Enum):
    SMALL = "small"


class Settings(dict[str, Any]):
    """Like Lightning's ``hyper_parameters``."""


@dataclass
class Arguments:
    rate: float
    kind: Kind


class Model:
    def __init__(self) -> None:
        self.size = 3


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (Settings(rate=0.1, inner=Settings(deep=[1])), {"rate": 0.1, "inner": {"deep": [1]}}),
        (Arguments(0.1, Kind.SMALL), {"rate": 0.1, "kind": "small"}),
        ({"kinds": [Kind.SMALL]}, {"kinds": ["small"]}),
        (SimpleNamespace(a=numpy.float64(0.5)), {"a": 0.5}),
        (UserDict(a=1), {"a": 1}),
    ],
)
def test_data_objects_are_converted_to_plain_data(value: Any, data: Any) -> None:
    plain, converted = to_plain({"hyper_parameters": value, "epoch": 3})
    assert plain == {"hyper_parameters": data, "epoch": 3}
    assert converted == ["hyper_parameters"]
    assert parse(dump(plain), "it") == plain


@pytest.mark.parametrize(
    "value", [{"a": (1, None)}, argparse.Namespace(a=1), {1, 2}, torch.Size([2]), "text"]
)
def test_plain_data_is_not_converted(value: Any) -> None:
    plain, converted = to_plain({"it": value})
    assert plain["it"] is value and not converted


@pytest.mark.parametrize("value", [Model(), {"a": {"b": Model}}, Arguments, lambda: None])
def test_other_objects_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"client_state\['it'\] contains .* without running code"):
        to_plain({"it": value})


def test_cyclic_object_is_refused() -> None:
    endless = Settings()
    endless["again"] = endless
    with pytest.raises(ValueError, match="client_state"):
        to_plain({"it": endless})
