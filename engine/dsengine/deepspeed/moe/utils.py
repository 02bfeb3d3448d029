"""Expert-parallel parameters: there are none, so that groups are returned unchanged."""

from typing import Any

from torch import Tensor

from dsengine.deepspeed.refusals import EXPERTS


def is_moe_param(param: Tensor) -> bool:
    """Return whether ``param`` is marked as expert-parallel."""
    return not getattr(param, "allreduce", True)


def has_moe_layers(module: Any) -> tuple[bool, int]:
    """Return (False, 0): ``module`` has no MoE layers of DeepSpeed."""
    del module
    return False, 0


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: Any, max_group_size: float | None = None
) -> list[dict[str, Any]]:
    """Return the groups as a list: without expert parallelism nothing is split.

    Raises NotImplementedError for parameters that are marked as expert-parallel.
    """
    del max_group_size
    groups: list[dict[str, Any]] = (
        [param_groups] if isinstance(param_groups, dict) else list(param_groups)
    )
    if any(is_moe_param(param) for group in groups for param in group["params"]):
        raise NotImplementedError(EXPERTS)
    return groups


__all__ = [
    "has_moe_layers",
    "is_moe_param",
    "split_params_into_different_moe_groups_for_optimizer",
]
