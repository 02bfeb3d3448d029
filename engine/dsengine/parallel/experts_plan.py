"""Which experts of a model are divided over ranks: those of the config's patterns or its plan.

As in DeepSpeed, ``preset_model`` and ``moe_layer_pattern`` replace the model's own plan. A model
without either is refused.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from dsconfig import Plan, nearest_degree
from dsconfig.features.table import EXPERT_PRESETS, FEATURES
from dsengine.parallel.tensor_plan import layers_of_plan
from dsengine.parameters.names import own_parameters

KEY = "expert_parallel.autoep_size"
_PRESET_LAYERS = r"model\.layers\.\d+\.mlp"
"""Of every ``preset_model``."""
DIVIDED = "grouped_gemm"
"""transformers' style of a weight whose first dimension counts experts."""
_REMEDY = (
    'write expert_parallel.moe_layer_pattern for layers whose attribute "experts" (or '
    "expert_pattern) has fused weights, or set autoep_size to 1 and use zero_optimization.stage 3"
)
_ROUTER: Mapping[str, tuple[str, ...]] = {
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k"),
    "score_func": ("scoring_func",),
    "route_norm": ("norm_topk_prob",),
    "route_scale": ("routed_scaling_factor",),
    "routed_scaling_factor": ("routed_scaling_factor",),
    "num_expert_groups": ("n_group",),
    "num_limited_groups": ("topk_group",),
}
"""By key, the attributes of a model's config with which its router is built."""
_AS_MODEL: Mapping[str, Any] = {"route_scale": 1.0}
"""Defaults other than ``auto`` and null."""


class Experts(NamedTuple):
    """A module of ``number`` experts, and its parameters."""

    name: str
    module: nn.Module
    weights: tuple[str, ...]
    number: int


def experts_of(model: nn.Module, plan: Plan) -> list[Experts]:
    """Return the modules of experts that the config's patterns, or else the model's plan, name.

    Raises ValueError, with what to write, if there are none or they cannot be divided.
    """
    degree = plan.mesh.expert
    settings = plan.effective.config.get("expert_parallel") or {}
    _refuse_other_router(model, settings)
    by_pattern = settings.get("moe_layer_pattern") or settings.get("preset_model")
    names = _matching(model, settings) if by_pattern else _planned(model)
    found = [_experts(model, name) for name in dict.fromkeys(names)]
    if not found:
        raise ValueError(
            f"{KEY} {degree}: {type(model).__name__} has no experts that "
            f"{'the pattern matches' if by_pattern else 'a plan (ep_plan) divides'}: {_REMEDY}"
        )

    def divides(ranks: int) -> bool:
        return all(experts.number % ranks == 0 for experts in found)

    if not divides(degree):
        worst = next(experts for experts in found if experts.number % degree)
        nearest = nearest_degree(degree, plan.mesh.data_parallel, divides)
        raise ValueError(
            f"{KEY} {degree} does not divide the {worst.number} experts of {worst.name}: use "
            f"{nearest}"
        )
    return found


def _refuse_other_router(model: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a key of the router that differs from the model's."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    for key, attributes in _ROUTER.items():
        value = settings.get(key)
        if value in (None, "auto", _AS_MODEL.get(key)):
            continue
        if key == "top_k" and settings.get("top_k_attr"):
            attributes = (settings["top_k_attr"],)
        own = next((getattr(config, name) for name in attributes if hasattr(config, name)), None)
        if value != own:
            raise ValueError(
                f"expert_parallel.{key} is {value!r}, but dsengine uses the router of the model, "
                f"whose config has {'no ' + attributes[0] if own is None else repr(own)}: remove "
                "the key, or change the config of the model"
            )


def _planned(model: Any) -> Iterator[str]:
    """Yield the names of modules with experts, by the plan of a model of transformers."""
    plan = getattr(model, "ep_plan", None)
    names = [name for name, _ in model.named_parameters()]
    for layer in layers_of_plan(plan if isinstance(plan, dict) else {}, names):
        if layer.style == DIVIDED:
            yield layer.name.rpartition(".")[0]


def _matching(model: nn.Module, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of modules with experts, by the patterns of a block ``expert_parallel``.

    Raises ValueError for an unknown preset or an invalid pattern.
    """
    preset = settings.get("preset_model")
    if preset and preset not in EXPERT_PRESETS:
        raise ValueError(
            f"expert_parallel.preset_model {preset!r}: {FEATURES['expert_presets'].text}"
        )
    written = settings.get("moe_layer_pattern") or _PRESET_LAYERS
    try:
        pattern = re.compile(written)
    except re.error as error:
        raise ValueError(f"expert_parallel.moe_layer_pattern {written!r}: {error}") from None
    attribute = settings.get("expert_pattern") or "experts"
    for name, layer in model.named_modules():
        if pattern.fullmatch(name) and isinstance(getattr(layer, attribute, None), nn.Module):
            yield f"{name}.{attribute}"


def _experts(model: nn.Module, name: str) -> Experts:
    """Return the experts of a module. Raises ValueError unless all its parameters are theirs."""
    module = model.get_submodule(name)
    weights = {name: parameter.shape for name, parameter in own_parameters(module)}
    counts = {shape[0] if shape else 0 for shape in weights.values()}
    others = [other for other, _ in module.named_parameters() if other not in weights]
    if others or len(counts) != 1 or all(len(shape) < 3 for shape in weights.values()):
        found = others or [f"{name} {tuple(shape)}" for name, shape in weights.items()]
        raise ValueError(
            f"expert_parallel: {name} is not a module of experts with fused weights, whose first "
            f"dimension counts the experts: it has {', '.join(found[:3])}"
        )
    return Experts(name, module, tuple(weights), counts.pop())
