"""Dtypes of buffers in 16-bit training.

A routing bias of a mixture of experts, for example, has values that bf16 cannot tell apart; models
of transformers list such names in their classes.
"""

import re
from collections.abc import Iterator

import torch
from torch import nn

from dsengine.optimizers.precision import Policy

_NOTHING = "(?!)"
"""A regular expression that matches no name."""


def cast_buffers(module: nn.Module, policy: Policy) -> None:
    """Cast the floating-point buffers as ``policy`` specifies.

    A pattern may match anywhere in the full name of a buffer, and its ``*`` any characters. In fp32
    training none applies, as in DeepSpeed. Raises ValueError for an invalid one.
    """
    if policy.fp32_buffers is None:
        patterns = _named_by_model(module, policy)
    else:
        patterns = map(_regular, policy.fp32_buffers)
    kept = re.compile("|".join(sorted(patterns) if policy.is_mixed else ()) or _NOTHING)
    for name, buffer in module.named_buffers(remove_duplicate=False):
        dtype = torch.float32 if kept.search(name) else policy.buffers
        if dtype is not None and buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)


def _named_by_model(module: nn.Module, policy: Policy) -> Iterator[str]:
    """Yield the patterns of transformers' classes: one list for all 16-bit dtypes, one for fp16."""
    lists = ["_keep_in_fp32_modules_strict"] if policy.is_mixed else []
    if policy.compute is torch.float16:
        lists.append("_keep_in_fp32_modules")
    for path, submodule in module.named_modules():
        for name in (name for each in lists for name in getattr(submodule, each, None) or ()):
            yield rf"^{re.escape(path)}\..*{_regular(name)}" if path else _regular(name)


def _regular(pattern: str) -> str:
    expression = pattern.replace("*", ".*")
    try:
        re.compile(expression)
    except re.error as error:
        raise ValueError(
            f"data_types.keep_in_fp32_modules: {pattern!r} is not a valid pattern: {error}"
        ) from None
    return expression
