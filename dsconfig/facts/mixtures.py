"""Mixture-of-experts sizes in a config.json: which blocks have experts, and their widths.

Families use different names for the same sizes, taken from the config classes of transformers 5.23.
"""

from collections.abc import Mapping
from typing import Any, cast

from dsconfig.facts.inputs import size_in_model

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k")
_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size")
_SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
_SHARED_EXPERTS = (
    "n_shared_experts",
    "num_shared_experts",
    "num_shared_expert",
    "moe_num_shared_experts",
)
_DENSE_WIDTH = ("intermediate_size_mlp", "prefix_dense_intermediate_size")
_DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
_EVERY = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
"""The last of every n blocks has experts."""
_ONE_SHARED = frozenset({"llama4_text"})
"""Families with a shared expert that the config does not mention."""


def mixture_of(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return the fields of :class:`~dsconfig.facts.model.Architecture` for experts.

    Empty if the model has no experts.
    """
    experts = count(config, EXPERTS)
    if experts is None or experts < 2 or config.get("is_moe") is False:
        return {}
    width = count(config, _WIDTH) or count(config, ("intermediate_size",))
    shared = shared_width(config)
    if shared is None:
        one = config.get("model_type") in _ONE_SHARED
        shared = (1 if one else count(config, _SHARED_EXPERTS) or 0) * (width or 0)
    return {
        "experts": experts,
        "experts_per_token": count(config, _CHOSEN),
        "expert_size": width,
        "shared_width": shared,
        "dense_blocks": tuple(block for block in range(layers) if not _is_mixed(config, block)),
        "dense_width": count(config, _DENSE_WIDTH),
    }


def shared_width(config: Mapping[str, Any]) -> int | None:
    """Return the inner width of the shared experts, if the config states a width."""
    return count(config, _SHARED_WIDTH)


def _is_mixed(config: Mapping[str, Any], place: int) -> bool:
    """Return whether the block at an index has experts."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list):
        return cast("list[object]", kinds)[place : place + 1] != ["dense"]
    chosen = config.get("moe_layers")
    if isinstance(chosen, list) and chosen:
        return place in chosen
    dense = config.get("mlp_only_layers")
    if isinstance(dense, list) and place in dense:
        return False
    period = count(config, ("expert_layer_period",))
    if period is not None:
        return place % period == (count(config, ("expert_layer_offset",)) or 0)
    last = config.get("moe_layer_end_index")
    if type(last) is int and 0 <= last < place:
        return False
    every = count(config, _EVERY) or 1
    return place >= (count(config, _DENSE_FIRST) or 0) and (place + 1) % every == 0


def count(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first positive integer under the given names, or None.

    Zero, null, ``auto`` and values that differ between blocks count as absent. Raises FactError for
    strings, fractions and negative numbers.
    """
    for name in names:
        value = repeated(config.get(name))
        if not value or value == "auto" or isinstance(value, list | dict):
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return size_in_model(name, value)
    return None


def repeated(value: object) -> object:
    """Return the common element of a list if all are equal, else the value itself."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return items[0] if items and all(item == items[0] for item in items) else cast("object", value)
