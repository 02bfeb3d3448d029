"""Errors for invalid calls, and the types of the arguments of ``initialize``.

The errors are AssertionErrors too, as DeepSpeed raises.
"""

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, NamedTuple

from torch import Tensor, nn

from dsconfig import Document, Plan, TrainingFacts


class MisuseError(RuntimeError, AssertionError):
    """The call is invalid in the current state."""


class ArgumentError(ValueError, AssertionError):
    """The call's arguments are invalid."""


def argument_error(name: str, expected: str, given: Any) -> ArgumentError:
    """Return the error for an argument of ``initialize``."""
    value = f" {given!r}" if isinstance(given, str | int | float) else ""
    kind = type(given).__name__
    return ArgumentError(f"initialize({name}=...) expects {expected}, not {kind}{value}")


class _Type(NamedTuple):
    expected: str
    accepts: Callable[[Any], bool]


def _of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _has(*names: str) -> Callable[[Any], bool]:
    """Return a test for methods of a value's class, which a class as the value has not."""
    return lambda value: all(callable(getattr(type(value), name, None)) for name in names)


def _is_port(value: Any) -> bool:
    return type(value) is int or (isinstance(value, str) and value.isdecimal())


def _is_mpu(value: Any) -> bool:
    names = (name for name in dir(value) if name.startswith("get_") and "parallel" in name)
    return any(callable(getattr(value, name)) for name in names)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(type(n) is int and n > 0 for n in value)


def _is_optimizer(value: Any) -> bool:
    return callable(value) or hasattr(value, "param_groups")


def _is_schedule(value: Any) -> bool:
    return callable(value) or hasattr(value, "step")


_PARAMETERS = "parameters, (name, parameter) pairs, or groups of them with the key params"
_CONFIG = _Type("a path, a dict or JSON text", _of(str, PathLike, Mapping, Document))
_TYPES: Mapping[str, _Type] = {
    "model": _Type("a torch.nn.Module", _of(nn.Module)),
    "optimizer": _Type(
        "a torch.optim.Optimizer, or a function of the parameters that returns one", _is_optimizer
    ),
    "lr_scheduler": _Type(
        "a schedule with a method step, or a function of the optimizer that returns one",
        _is_schedule,
    ),
    "training_data": _Type(
        "a dataset with a length and an index (for others, iterate over a loader of your own)",
        _has("__len__", "__getitem__"),
    ),
    "collate_fn": _Type("a function of a list of samples", callable),
    "distributed_port": _Type("a port number", _is_port),
    "dist_init_required": _Type("True, False or None", _of(bool)),
    "mpu": _Type("an object with methods such as get_data_parallel_group", _is_mpu),
    "mesh_param": _Type("(data, sequence) parallel sizes", _are_sizes),
    "config": _CONFIG,
    "config_params": _CONFIG,
    "args.deepspeed_config": _CONFIG,
    "plan": _Type("a Plan or the path of one", _of(Plan, str, PathLike)),
    "training": _Type("TrainingFacts", _of(TrainingFacts)),
}


def check_types(**given: Any) -> None:
    """Raise ArgumentError for an argument of ``initialize`` of another type; None is none."""
    for name, value in given.items():
        expected, accepts = _TYPES[name]
        if value is not None and not accepts(value):
            raise argument_error(name, expected, value)


def check_result(name: str, result: Any, attribute: str) -> Any:
    """Return what the function that is argument ``name`` has returned; it has ``attribute``."""
    if not hasattr(result, attribute):
        raise argument_error(name, f"a function whose result has {attribute}", result)
    return result


def listed_parameters(given: Any) -> list[Any]:
    """Return the argument ``model_parameters`` as a list. Raises ArgumentError for others."""
    items = _list(given)
    if items and isinstance(items[0], Mapping):
        return [_group(item) for item in items]
    return _checked(items)


def _list(given: Any) -> list[Any]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping | Tensor):
        raise argument_error("model_parameters", f"an iterable of {_PARAMETERS}", given)
    return list(given)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _group(item: Any) -> dict[str, Any]:
    if not isinstance(item, Mapping) or "params" not in item:
        raise argument_error("model_parameters", _PARAMETERS, item)
    members = item["params"]
    listed = [members] if isinstance(members, Tensor) else _list(members)
    return {**item, "params": _checked(listed)}


def _checked(items: list[Any]) -> list[Any]:
    for item in items:
        is_named = isinstance(item, tuple) and len(item) == 2  # pyright: ignore[reportUnknownArgumentType]
        if not isinstance(item[1] if is_named else item, Tensor):
            raise argument_error("model_parameters", _PARAMETERS, item)
    return items
