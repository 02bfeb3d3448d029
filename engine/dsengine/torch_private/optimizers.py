"""What an optimizer imports, and the hooks on its step.

Public: adding and removing hooks, and a wrapper that runs them around a function. Private: the
hook tables, needed to skip hooks if one training step consists of many optimizer steps.
"""

import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from dsengine.loading import gc_disabled


def load_compiler() -> None:
    """Import ``torch._dynamo``, which every torch optimizer imports on first use."""
    if "torch._dynamo" not in sys.modules:
        with gc_disabled():
            import torch._dynamo as _  # noqa: F401


def step_hooks_once(optimizer: Optimizer, step: Callable[[], None]) -> None:
    """Run ``optimizer``'s step hooks once around ``step``, and not in its calls inside."""
    tables: list[dict[int, Any]] = [
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    ]

    def without_hooks(_: Optimizer) -> None:
        saved = [dict(table) for table in tables]
        for table in tables:
            table.clear()
        try:
            step()
        finally:
            for table, hooks in zip(tables, saved, strict=True):
                table.update(hooks)

    Optimizer.profile_hook_step(without_hooks)(optimizer)
