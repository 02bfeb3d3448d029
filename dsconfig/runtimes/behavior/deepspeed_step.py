"""Replay of engine initialization and two steps, for errors after parsing."""

from typing import Any

from dsconfig.runtimes.behavior.replay import Replay, ReplayStop, errors_at
from dsconfig.runtimes.built import optimizer_built
from dsconfig.schema.catalogue import find
from dsconfig.schema.former_names import bf16_block
from dsconfig.schema.schedules import SCHEDULES
from dsconfig.schema.value_checks import DTYPE_OF_NAME
from dsconfig.schema.version import Version
from dsconfig.source.pointer import ABSENT, is_block, is_list, value_at

STEPS_CHECKED = Version(0, 19, 3)
"""The first release that refuses zero warmup steps; earlier ones raise it to two."""
PARAMETERS_CHECKED = Version(0, 19, 2)
"""The first release that reads ``param_dtype``."""
RATES = ("warmup_min_lr", "warmup_max_lr")
RATE_OF_THE_OPTIMIZER = Version(0, 17, 2)
"""The first release in which a schedule may take its maximum rate from the optimizer."""


def build_and_step(outcome: Replay, client_optimizer: str | None, version: Version) -> None:
    """Raise ReplayStop where ``deepspeed.initialize`` or the first steps would raise."""
    config = outcome.config
    name = value_at(config, ("optimizer", "type"))
    if client_optimizer is None and name not in (ABSENT, None):
        built = isinstance(name, str) and optimizer_built(name, {}, version, offloaded=False)
        if not built:
            message = f"{name} is not an optimizer of DeepSpeed or torch.optim"
            raise ReplayStop("AssertionError", message, "optimizer.type", late=True)
    _dtypes(config, version)
    if client_optimizer is None:
        _build_adam(config)
    _scheduler(config, version)
    clipping: Any = config.get("gradient_clipping", 1.0)
    with errors_at("gradient_clipping", late=True):
        _ = clipping > 0.0
    interval: Any = config.get("steps_per_print")
    if interval is not None:
        with errors_at("steps_per_print", late=True):
            _ = 1 % interval


def _dtypes(config: dict[str, Any], version: Version) -> None:
    """Check dtype names, and that they agree with the precision where required."""
    model = "fp32"
    if _is_on(config, "fp16", "enabled"):
        model = "fp16"
    elif _is_on(config, bf16_block(config), "enabled"):
        model = "bf16"
    parameters = _dtype(config, "param_dtype", version)
    if parameters not in (None, model) and version >= PARAMETERS_CHECKED:
        message = f"param_dtype is {parameters}, but the precision is {model}"
        raise ReplayStop("AssertionError", message, "data_types.param_dtype", late=True)
    if model != "fp32":
        _dtype(config, "buffer_dtype", version)
    sums = _dtype(config, "grad_accum_dtype", version)
    if sums not in (None, model) and not _is_on(config, "zero_optimization", "stage"):
        message = f"accumulating gradients in {sums} with parameters in {model} requires ZeRO"
        raise ReplayStop("NotImplementedError", message, "data_types.grad_accum_dtype", late=True)


def _dtype(config: dict[str, Any], name: str, version: Version) -> str | None:
    path = ("data_types", name)
    value = value_at(config, path)
    if value in (ABSENT, None):
        return None
    known = find(path)
    if known is not None and known.failed_check(value, version):
        raise ReplayStop("ValueError", f"{value!r} is not a dtype", ".".join(path), late=True)
    return DTYPE_OF_NAME.get(value)


def _is_on(config: dict[str, Any], block: str, switch: str) -> bool:
    value = value_at(config, (block, switch))
    return value not in (ABSENT, None, "auto") and bool(value)


def _build_adam(config: dict[str, Any]) -> None:
    """Check the ranges of Adam's arguments in order; other types are skipped."""
    name = value_at(config, ("optimizer", "type"))
    params = value_at(config, ("optimizer", "params"))
    if name not in ("adam", "adamw") or not is_block(params):
        return
    if "max_grad_norm" in params:
        message = "max_grad_norm is not a parameter of the optimizer; use gradient_clipping"
        raise ReplayStop("ValueError", message, "optimizer.params.max_grad_norm", late=True)
    for key in ("lr", "eps", "betas", "weight_decay"):
        path = f"optimizer.params.{key}"
        if key not in params:
            continue
        value = params[key]
        with errors_at(path, late=True):
            numbers: list[Any] = [value[0], value[1]] if key == "betas" else [value]
            for number in numbers:
                if not number >= 0.0 or (key == "betas" and not number < 1.0):
                    raise ReplayStop("ValueError", f"{path} is {value!r}", path, late=True)


def _scheduler(config: dict[str, Any], version: Version) -> None:
    name = value_at(config, ("scheduler", "type"))
    if name in (ABSENT, None):
        return
    kind = SCHEDULES.get(name) if isinstance(name, str) else None
    if kind is None:
        message = f"{name} is not a scheduler of DeepSpeed or torch"
        raise ReplayStop("AssertionError", message, "scheduler.type", late=True)
    if not kind.warms_up:
        return
    params = value_at(config, ("scheduler", "params"))
    with errors_at("scheduler.params", late=True):
        held: dict[str, Any] = dict(**params)
    _warmup(held, version)
    if name == "WarmupCosineLR":
        _total(held)
        return
    wrong = [key for key in RATES if not _are_rates(held.get(key, 0.0), key, version)]
    with errors_at(*(f"scheduler.params.{key}" for key in wrong), late=True):
        _ = [0.0 - held[key] for key in wrong]
    if name == "WarmupDecayLR":
        _total(held)


def _total(held: dict[str, Any]) -> None:
    path = "scheduler.params.total_num_steps"
    if "total_num_steps" not in held:
        raise ReplayStop("TypeError", "total_num_steps is a required argument", path, late=True)
    with errors_at(path, late=True):
        _ = held["total_num_steps"] < held.get("warmup_num_steps", 1000)


def _are_rates(value: Any, key: str, version: Version) -> bool:
    """Return whether a value is a rate or one per group; null may be the optimizer's rate."""
    if value is None:
        return key == "warmup_max_lr" and version >= RATE_OF_THE_OPTIMIZER
    each = value if is_list(value) else [value]
    return all(isinstance(rate, int | float) for rate in each)


def _warmup(held: dict[str, Any], version: Version) -> None:
    steps = held.get("warmup_num_steps", 1000)
    path = "scheduler.params.warmup_num_steps"
    if version < STEPS_CHECKED:
        with errors_at(path, late=True):
            max(2, steps)
        return
    if not isinstance(steps, int) or steps <= 0:
        message = f"warmup_num_steps is {steps!r}; it must be a positive integer"
        raise ReplayStop("ValueError", message, path, late=True)
