"""Which parameters are experts on ranks of their own: none, and groups stay as they are."""

from typing import Any

from torch import Tensor

from dsengine.deepspeed.refusals import EXPERTS


def is_moe_param(param: Tensor) -> bool:
    """Return whether ``param`` is marked as an expert that other ranks do not have."""
    return not getattr(param, "allreduce", True)


def has_moe_layers(module: Any) -> tuple[bool, int]:
    """Return (False, 0): whether ``module`` has DeepSpeed's layers of experts, and how many."""
    del module
    return False, 0


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: Any, max_group_size: float | None = None
) -> list[dict[str, Any]]:
    """Return the groups, or the one group, as a list: experts would get groups of their own.

    Raises NotImplementedError for parameters marked as such experts.
    """
    del max_group_size
    groups: list[dict[str, Any]] = (
        [param_groups] if isinstance(param_groups, dict) else list(param_groups)
    )
    if any(is_moe_param(each) for group in groups for each in group["params"]):
        raise NotImplementedError(EXPERTS)
    return groups


__all__ = [
    "has_moe_layers",
    "is_moe_param",
    "split_params_into_different_moe_groups_for_optimizer",
]
