"""Activation checkpointing, from the config or per function.

    dsengine.checkpointing.configure(None, deepspeed_config=config)
    y = dsengine.checkpointing.checkpoint(block, x)

``partition_activations`` and ``contiguous_memory_optimization`` have no effect without model
parallelism.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.profiler import record_function
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import dsconfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationSettings:
    """The ``activation_checkpointing`` block of a config."""

    partition_activations: bool
    cpu_checkpointing: bool
    contiguous_memory_optimization: bool
    number_checkpoints: int | None
    synchronize_checkpoint_boundary: bool
    profile: bool

    @classmethod
    def of(cls, effective: dsconfig.Effective) -> "RecomputationSettings":
        """Return the settings of a plan's config."""
        block = effective.activation_checkpointing
        return cls(**{name: getattr(block, name) for name in cls.__dataclass_fields__})


@cache
def unconfigured() -> RecomputationSettings:
    """Return the defaults."""
    return RecomputationSettings.of(dsconfig.Effective(batch=None))


_settings: RecomputationSettings | None = None


def configure(
    mpu_: Any = None,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Configure ``checkpoint``; arguments override the config block.

    ``deepspeed_config``: a dict or a path. Raises ValueError if the config cannot be read, or if
    contiguous memory is requested without partitioning or without a number of checkpoints.
    """
    del mpu_
    block = _block(deepspeed_config)
    given = {
        "partition_activations": partition_activations,
        "contiguous_memory_optimization": contiguous_checkpointing,
        "number_checkpoints": num_checkpoints,
        "cpu_checkpointing": checkpoint_in_cpu,
        "synchronize_checkpoint_boundary": synchronize,
        "profile": profile,
    }
    block |= {name: value for name, value in given.items() if value is not None}
    use(replace(unconfigured(), **block))


def use(settings: RecomputationSettings) -> None:
    """Configure ``checkpoint`` from a plan's settings."""
    global _settings
    if settings.contiguous_memory_optimization and not settings.partition_activations:
        raise ValueError("contiguous_memory_optimization requires partition_activations: true")
    if settings.contiguous_memory_optimization and settings.number_checkpoints is None:
        raise ValueError("contiguous_memory_optimization requires number_checkpoints")
    _settings = settings


def is_configured() -> bool:
    return _settings is not None


def reset() -> None:
    """Do nothing: no state is kept between forward passes."""


def checkpoint(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call ``function`` and recompute its activations in backward instead of storing them.

    The random state and autocast settings of the first run are restored for the recomputation.
    """
    settings = _settings or unconfigured()
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    synchronizes = settings.synchronize_checkpoint_boundary and torch.cuda.is_available()
    with ExitStack() as stack:
        if settings.cpu_checkpointing:  # saved inputs stay on the host until backward
            stack.enter_context(save_on_cpu(pin_memory=torch.cuda.is_available()))
        if settings.profile:
            stack.enter_context(record_function("dsengine.checkpoint"))
        if synchronizes:
            torch.cuda.synchronize()
        result = torch_checkpoint(function, *args, use_reentrant=False, **kwargs)
        if synchronizes:
            torch.cuda.synchronize()
    return result  # type: ignore[return-value]


non_reentrant_checkpoint = checkpoint


def every_other_product() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return contexts that save attention and every second matmul, and recompute the rest.

    For use as ``context_fn`` of torch's ``checkpoint``. A transformers model passes it through:

            model.gradient_checkpointing_enable(
                dict(use_reentrant=False, context_fn=dsengine.checkpointing.every_other_product)
            )
    """
    seen = {False: 0, True: 0}

    def decide(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = operation.name() if hasattr(operation, "name") else str(operation)
        if name in _PRODUCTS:
            seen[context.is_recompute] += 1
            keeps = seen[context.is_recompute] % 2 == 1
        else:
            keeps = "attention" in name or "flash_attn" in name
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(decide)


_PRODUCTS = frozenset(("aten::mm", "aten::addmm", "aten::_scaled_mm", "aten::_grouped_mm"))
"""Operators that linear layers dispatch to."""


def checkpoint_blocks(
    module: nn.Module, settings: RecomputationSettings, blocks: Iterable[str]
) -> list[str]:
    """Make the named blocks of ``module`` recompute their activations; return their names.

    Call it before sharding. A Hugging Face model enables checkpointing itself, because its blocks
    would otherwise fill the key-value cache twice. Module and parameter names do not change.
    """
    use(settings)
    names = list(blocks)
    # transformers before 5 uses the second name.
    for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
        enable: Any = getattr(module, name, None)
        if enable is None:
            continue
        enable({"use_reentrant": False})
        for submodule in module.modules():
            if hasattr(submodule, "_gradient_checkpointing_func"):
                submodule._gradient_checkpointing_func = checkpoint  # type: ignore[assignment]
        return names
    for name in names:
        block = module.get_submodule(name)
        # Replace the instance's forward instead of wrapping the module: checkpoint names do not
        # change, and sharding hooks run once around both computations.
        block.forward = partial(_recomputed, block, type(block).forward)
    return names


def release_blocks(module: nn.Module) -> None:
    """Undo ``checkpoint_blocks`` of an earlier engine."""
    for block in module.modules():
        forward = vars(block).get("forward")
        if isinstance(forward, partial) and forward.func is _recomputed:
            del block.forward


def _recomputed(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(block, *args, **kwargs)
    return checkpoint(partial(forward, block), *args, **kwargs)


def _block(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        document = dsconfig.read(config)
        if not isinstance(document.value, Mapping):
            raise ValueError(f"{config} does not contain a config object")
        config = document.value
    block = dict(config.get("activation_checkpointing", {}))
    unknown = sorted(block.keys() - RecomputationSettings.__dataclass_fields__.keys())
    if unknown:
        raise ValueError(f"unknown keys in activation_checkpointing: {', '.join(unknown)}")
    return block
