"""Objects whose methods raise, passed to the library."""

import pathlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import IntEnum, StrEnum
from inspect import signature
from typing import Any

import pytest

import dsconfig
from dsconfig.source.plain import LONGEST_TEXT, PythonObject

FACTS = dsconfig.gather(gpus=8, params="7B", seq_len=1024)
CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}


class Hostile(Exception):
    """Raised by every method of an object."""


def _fail(*_: Any) -> Any:
    raise Hostile


fail: Any = _fail


class Opaque:
    __repr__ = __str__ = __bool__ = __len__ = __iter__ = __int__ = __float__ = fail
    __eq__ = __lt__ = __hash__ = __fspath__ = fail


class NoAttributes(Opaque):
    __getattr__ = fail


class Representation:
    __repr__ = fail


class Comparison:
    __eq__ = fail
    __hash__ = object.__hash__


class Scalar:
    ndim = 0
    item = fail


class Array:
    ndim = 1
    size = 3
    tolist = fail


class ArrayOfArrays:
    ndim = 1
    size = 1

    def tolist(self) -> list[Any]:
        return [Array(), Opaque()]


class Everything:
    """Answers every attribute, as a mock does."""

    def __getattr__(self, name: str) -> Any:
        return self


class Number(int):
    __repr__ = __str__ = __eq__ = __lt__ = __gt__ = __add__ = __mul__ = __index__ = __bool__ = fail
    __hash__ = int.__hash__


class Text(str):
    __repr__ = __str__ = __eq__ = __len__ = __format__ = lower = strip = startswith = fail
    __hash__ = str.__hash__
    __slots__ = ()


class Entries(dict[str, Any]):
    items = keys = values = __iter__ = __len__ = fail


class Endless(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(["a", "b"])

    def __len__(self) -> int:
        return 2


class Stage(IntEnum):
    GRADIENTS = 2


class Device(StrEnum):
    CPU = "cpu"


class Long:
    def __repr__(self) -> str:
        return "x" * 10**6


OBJECTS: list[Callable[[], Any]] = [
    Opaque,
    NoAttributes,
    Representation,
    Comparison,
    Scalar,
    Array,
    ArrayOfArrays,
    Everything,
    Long,
    lambda: Number(3),
    lambda: Text("auto"),
    Endless,
    lambda: Entries(a=1),
    lambda: {1, "a", None},
    lambda: [[Opaque()], {"a": Comparison()}],
    lambda: {Text("enabled"): True},
    lambda: {object: 1, (1, 2): 2, 10**5000: 3},
    lambda: fail,
    lambda: Opaque,
    lambda: b"\xff",
    lambda: pathlib.PurePath("a"),
    lambda: 1j,
    lambda: float,
    lambda: iter([1]),
]


@pytest.mark.parametrize("make", OBJECTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "path",
    [
        ("train_batch_size",),
        ("zero_optimization",),
        ("zero_optimization", "stage"),
        ("optimizer", "params", "lr"),
        ("unknown", "key"),
    ],
    ids=".".join,
)
def test_object_in_config_is_a_finding_or_value(
    path: tuple[str, ...], make: Callable[[], Any]
) -> None:
    config: dict[str, Any] = {path[-1]: make()}
    for name in reversed(path[:-1]):
        config = {name: config}
    config = {"train_batch_size": 8, **config}
    document = dsconfig.read(config)
    for runtime in ("dsengine", "deepspeed", "transformers"):
        report = dsconfig.validate(document, FACTS, runtime=runtime)
        assert all(len(found.message) < 20 * LONGEST_TEXT for found in report.diagnostics)
        resolution = dsconfig.resolve(config, FACTS, runtime=runtime)
        with suppress(ValueError):
            dsconfig.plan(resolution, FACTS)


def test_objects_with_a_json_form_are_converted() -> None:
    config = dsconfig.read(
        {
            "zero_optimization": {
                "stage": Stage.GRADIENTS,
                "offload_param": {"device": Device.CPU},
            },
            "a": Number(3),
            "b": Text("auto"),
            "c": {Text("d"): {3, 1}},
        }
    ).value
    zero = config["zero_optimization"]
    values = (zero["stage"], zero["offload_param"]["device"], config["a"], config["b"])
    assert values == (2, "cpu", 3, "auto")
    assert [type(value) for value in values] == [int, str, int, str]
    assert isinstance(config["c"]["d"], PythonObject) and config["c"]["d"].item() == [1, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda value: dsconfig.read(value),
        lambda value: dsconfig.read(CONFIG, name=value),
        lambda value: dsconfig.validate(value),
        lambda value: dsconfig.validate(CONFIG, value),
        lambda value: dsconfig.validate(CONFIG, runtime=value),
        lambda value: dsconfig.validate(CONFIG, version=value),
        lambda value: dsconfig.resolve(CONFIG, runtime=value),
        lambda value: dsconfig.resolve(value, version=value),
        lambda value: dsconfig.estimate(value, FACTS),
        lambda value: dsconfig.plan(value, FACTS),
        lambda value: dsconfig.plan(dsconfig.resolve(CONFIG), value),
        lambda value: dsconfig.explain(value),
        lambda value: dsconfig.diff(CONFIG, value),
        lambda value: dsconfig.diff(CONFIG, from_version=value),
        lambda value: dsconfig.tune(value),
        lambda value: dsconfig.tune(FACTS, runtime=value),
    ],
)
@pytest.mark.parametrize("make", [NoAttributes, Everything], ids=lambda make: make.__name__)
def test_object_as_argument_raises_our_error(
    call: Callable[[Any], Any], make: Callable[[], Any]
) -> None:
    with pytest.raises((TypeError, ValueError), match=r"\w{3}"):
        call(make())


@pytest.mark.parametrize(
    "argument",
    sorted(signature(dsconfig.gather).parameters.keys() - {"lora_rank"}),
)
@pytest.mark.parametrize(
    "make", [NoAttributes, Everything, lambda: [Opaque()]], ids=["raises", "mock", "list"]
)
def test_object_as_fact_is_refused_by_name(make: Callable[[], Any], argument: str) -> None:
    given = {"gpus": 8, "model": "gpt2", "lora_rank": 4}
    if argument == "params":
        del given["model"]
    with pytest.raises(ValueError, match=f"^{argument}: "):
        dsconfig.gather(**{**given, argument: make()})


def test_object_in_training_arguments_is_kept_as_text() -> None:
    facts = dsconfig.gather(training_args={"optim": Opaque(), "max_steps": 3})
    assert facts.training is not None
    assert str(facts.training.arguments["optim"]) == "an object of type Opaque"
