"""Which layers of a model are split over ranks, and how: the model's plan or the config's rules.

As in DeepSpeed, ``partition_config`` and ``preset_model`` replace the model's own plan. A model
without either is refused: splitting by the names of layers alone is wrong for some.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

STYLE_OF = {
    ("column", False): "colwise",
    ("column", True): "colwise_gather_output",
    ("row", False): "rowwise",
    ("row", True): "rowwise",
}
"""The style of a layer by its ``partition_type`` and ``gather_output``."""
SUMMED = "replicated_with_grad_allreduce"
"""The style of a layer that every rank has whole, and whose gradients are partial sums."""
RULES = "tensor_parallel.partition_config.layer_specs"
PER_HEAD = ("colwise",)
"""Styles whose outputs stay split: those of attention have to be whole heads."""
_ATTENTION = (
    {"patterns": [r".*\.self_attn\.o_proj\.weight$"], "partition_type": "row"},
    {"patterns": [r".*\.self_attn\.[qkv]_proj\.weight$"], "partition_type": "column"},
)
_MLP = (
    {"patterns": [r".*\.mlp\.down_proj\.weight$"], "partition_type": "row"},
    {"patterns": [r".*\.mlp\.(up|gate)_proj\.weight$"], "partition_type": "column"},
)
PRESETS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "llama": (*_ATTENTION, *_MLP),
    "mixtral": _ATTENTION,
    "qwen2": (*_ATTENTION, *_MLP),
}
"""Rules by ``preset_model``. The experts of Mixtral stay whole. Coverage has the same names."""


FAULTY: Mapping[str, str] = {
    "apertus": "leaves the gradients of its activation, mlp.act_fn, partial",
    "doge": "does not split the parameters of its attention mask",
}
"""What is wrong with plans of transformers 5.23, by model type."""


class Layer(NamedTuple):
    """A module, or a parameter of its own, with the style in which it is split."""

    name: str
    style: str


def layers_of_plan(plan: Mapping[str, str], names: Iterable[str]) -> list[Layer]:
    """Return those of ``names`` that a plan of transformers splits, in their order.

    A ``*`` in a plan is the number of a layer.
    """
    found = ((name, plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))) for name in names)
    return [Layer(name, style) for name, style in found if style is not None]


def layers_of_rules(
    settings: Mapping[str, Any], linear: Iterable[str], others: Iterable[str], model_type: str
) -> list[Layer]:
    """Return the layers that the rules of a block ``tensor_parallel`` split.

    ``linear``: names of linear layers; ``others``: of further modules with a weight, which a rule
    can only skip. Rules match the name of the weight, the first one that does applies. Raises
    ValueError for a rule that cannot be followed and, in ``strict_mode``, for a linear layer
    without one.
    """
    config = settings.get("partition_config") or {}
    rules = [rule for rule in rules_of(settings) if _is_for(rule, model_type)]
    found: list[Layer] = []
    linear = list(linear)
    for name in [*linear, *others]:
        rule = next((rule for rule in rules if _matches(rule, f"{name}.weight")), None)
        if rule is None:
            if config.get("strict_mode") and name in linear:
                raise ValueError(
                    f"{RULES}: strict_mode is set, and no rule matches {name}.weight: add one, "
                    'with "partition_type": "skip" to keep it whole'
                )
            continue
        kind = str(rule.get("partition_type", "column")).lower()
        if kind == "skip":
            found += [Layer(name, SUMMED)] if rule.get("grad_allreduce") else []
        elif name in linear:
            _refuse_shape(rule, kind, name)
            found.append(Layer(name, STYLE_OF[kind, bool(rule.get("gather_output"))]))
    return found


def rules_of(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rules of a block ``tensor_parallel`` in order: its own, then the preset's.

    Raises ValueError for an unsupported preset.
    """
    config = settings.get("partition_config")
    own: list[Mapping[str, Any]] = list((config or {}).get("layer_specs") or ())
    preset = settings.get("preset_model")
    if not preset or (config and not config.get("use_default_specs", True)):
        return own
    if str(preset).lower() not in PRESETS:
        raise ValueError(
            f"tensor_parallel.preset_model {preset!r} is not supported: use "
            f"{', '.join(PRESETS)}, write layer_specs, or remove the key to use the model's plan"
        )
    return own + list(PRESETS[str(preset).lower()])


def _is_for(rule: Mapping[str, Any], model_type: str) -> bool:
    types = rule.get("model_types")
    return not types or model_type.lower() in (str(each).lower() for each in types)


def _matches(rule: Mapping[str, Any], name: str) -> bool:
    return any(re.match(pattern, name) for pattern in rule.get("patterns") or ())


def _refuse_shape(rule: Mapping[str, Any], kind: str, name: str) -> None:
    """Raise ValueError for weights whose parts have to be split one by one."""
    default = 0 if kind == "column" else 1
    if rule.get("shape") is not None:
        raise ValueError(
            f"{RULES}: the rule for {name} has a shape, but dsengine splits weights in one piece: "
            'remove "shape" and write "gather_output": true, or skip the layer'
        )
    if rule.get("partition_dim") not in (None, default):
        raise ValueError(
            f"{RULES}: the rule for {name} has partition_dim {rule['partition_dim']}, but "
            f"{kind} splits dimension {default}: write the other partition_type"
        )
