"""Which layers of a model are split over ranks, and how: the model's plan or the config's rules.

As in DeepSpeed, ``partition_config`` and ``preset_model`` replace the model's own plan. A model
without either is refused: splitting by the names of layers alone is wrong for some.
"""

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

PACKED_GATHERED = "packed_colwise_gather_output"
"""The style of several matrices in one weight whose outputs are gathered."""
VOCABULARY = "colwise_vocabulary"
"""The style of a head whose logits stay split."""
STYLE_OF = {
    ("column", False): ("colwise", "packed_colwise"),
    ("column", True): ("colwise_gather_output", PACKED_GATHERED),
    ("row", False): ("rowwise", "packed_rowwise"),
    ("row", True): ("rowwise", "packed_rowwise"),
}
"""The styles of a layer with one matrix and with several, by its ``partition_type`` and
``gather_output``."""
SUMMED = "replicated_with_grad_allreduce"
"""The style of a layer that every rank has whole, and whose gradients are partial sums."""
RULES = "tensor_parallel.partition_config.layer_specs"
PER_HEAD = ("colwise",)
"""Styles whose outputs stay split: those of attention have to be whole heads."""


def _rule(layers: str, kind: str = "column", **more: Any) -> Mapping[str, Any]:
    return {"patterns": [rf".*\.({layers})\.weight$"], "partition_type": kind, **more}


_OUTPUT = _rule(r"self_attn\.o_proj|mlp\.down_proj", "row")
_SEPARATE = (_OUTPUT, _rule(r"self_attn\.[qkv]_proj|mlp\.(up|gate)_proj"))
_BLOOM = _rule(r"self_attention\.dense|mlp\.dense_4h_to_h", "row")
PRESETS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "llama": _SEPARATE,
    "qwen2": _SEPARATE,
    "bloom": (_BLOOM, _rule(r"self_attention\.query_key_value|mlp\.dense_h_to_4h")),
    "chatglm": (
        _BLOOM,
        _rule(r"self_attention\.query_key_value", shape=[3, -1]),
        _rule(r"mlp\.dense_h_to_4h", shape=[2, -1]),
    ),
    "mixtral": (
        _rule(r"self_attn\.o_proj|block_sparse_moe\.experts\.\d+\.w2", "row"),
        _rule(r"self_attn\.[qkv]_proj|block_sparse_moe\.experts\.\d+\.w[13]"),
    ),
    "deepseek_v2": (
        _rule(r"self_attn\.o_proj|mlp\.(experts\.\d+|shared_experts)\.down_proj", "row"),
        _rule(r"self_attn\.kv_a_proj_with_mqa", "skip", style="mla_kv_a_proj"),
        _rule(r"self_attn\.(q_b_proj|kv_b_proj)"),
        _rule(r"mlp\.(experts\.\d+|shared_experts)\.(up|gate)_proj"),
    ),
    "phi3": (
        _OUTPUT,
        _rule(r"self_attn\.qkv_proj", shape=[3, -1]),
        _rule(r"mlp\.gate_up_proj", shape=[2, -1]),
    ),
}
"""Rules by ``preset_model``, those of DeepSpeed 0.19.8.

Experts that are one parameter stay whole. DeepSpeed leaves the gradients of ``kv_a_proj_with_mqa``
partial, which gives each rank other weights; here they are summed.
"""

UNFIT: Mapping[str, str] = {
    "bloom": "adds the positions of all heads to the scores of each rank: write layer_specs for "
    "its MLP instead",
    "phi3": "takes the sizes of queries and keys from its config: remove the key to use the "
    "model's plan",
}
"""Why models of transformers 5.23 cannot be split by the preset of their name, and what to do."""

_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "apertus": ("mlp.act_fn",),
    "qwen3_omni_moe_text": _NORMS,
    "qwen3_vl_moe_text": _NORMS,
}
"""Modules of a block with partial gradients that plans of transformers 5.23 do not name, by model
type."""


class Layer(NamedTuple):
    """A module, or a parameter of its own, with the style in which it is split."""

    name: str
    style: str
    packed: tuple[int, ...] = ()
    """Sizes of the matrices of a packed weight, if a rule has them."""

    @property
    def matrices(self) -> int:
        """Return the number of matrices in a weight: two of equal size in packed ones of plans."""
        return len(self.packed) or (2 if self.style.startswith("packed") else 1)


def layers_of_plan(
    plan: Mapping[str, str], names: Iterable[str], model_type: str = ""
) -> list[Layer]:
    """Return those of ``names`` that a plan of transformers splits, in their order.

    A ``*`` in a plan is the number of a layer. Modules in ``LEFT_OUT`` are added.
    """
    blocks = {key[: key.index("*") + 1] for key in plan if "*" in key}
    added = (f"{block}.{name}" for block in blocks for name in LEFT_OUT.get(model_type, ()))
    plan = {**plan, **dict.fromkeys(added, SUMMED)}
    found = ((name, plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))) for name in names)
    return [Layer(name, style) for name, style in found if style is not None]


def layers_of_rules(
    settings: Mapping[str, Any],
    linear: Mapping[str, tuple[int, int]],
    others: Iterable[str],
    model_type: str,
) -> list[Layer]:
    """Return the layers that the rules of a block ``tensor_parallel`` split.

    ``linear``: shapes of linear layers' weights by name; ``others``: further modules with a weight,
    which a rule can only skip. Rules match the name of the weight, the first one that does applies.
    Raises ValueError for a rule that cannot be followed and, in ``strict_mode``, for a linear layer
    without one.
    """
    config = settings.get("partition_config") or {}
    rules = [rule for rule in rules_of(settings) if _is_for(rule, model_type)]
    if str(settings.get("preset_model")).lower() == model_type and model_type in UNFIT:
        raise ValueError(
            f"tensor_parallel.preset_model {model_type}: the attention of this model of "
            f"transformers {UNFIT[model_type]}"
        )
    found: list[Layer] = []
    for name in [*linear, *others]:
        rule = first_rule(rules, f"{name}.weight")
        if rule is None:
            if config.get("strict_mode") and name in linear:
                raise ValueError(
                    f"{RULES}: strict_mode is set, and no rule matches {name}.weight: add one, "
                    'with "partition_type": "skip" to keep it whole'
                )
            continue
        kind = str(rule.get("partition_type", "column")).lower()
        if kind == "skip":
            style = SUMMED if rule.get("grad_allreduce") else rule.get("style")
            found += [Layer(name, style)] if style else []
        elif name in linear:
            packed = _matrices_of(rule, kind, name, linear[name])
            styles = STYLE_OF[kind, bool(rule.get("gather_output"))]
            found.append(Layer(name, styles[bool(packed)], packed))
    return found


def rules_of(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rules of a block ``tensor_parallel`` in order: its own, then the preset's."""
    config = settings.get("partition_config")
    own: list[Mapping[str, Any]] = list((config or {}).get("layer_specs") or ())
    preset = settings.get("preset_model")
    if not preset or (config and not config.get("use_default_specs", True)):
        return own
    return own + list(PRESETS[str(preset).lower()])


def _is_for(rule: Mapping[str, Any], model_type: str) -> bool:
    types = rule.get("model_types")
    return not types or model_type.lower() in (str(each).lower() for each in types)


def first_rule(rules: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """Return the rule that applies to the weight ``name``."""
    matches = (
        rule
        for rule in rules
        if any(re.match(pattern, name) for pattern in rule.get("patterns") or ())
    )
    return next(matches, None)


def _matrices_of(
    rule: Mapping[str, Any], kind: str, name: str, weight: tuple[int, int]
) -> tuple[int, ...]:
    """Return the sizes of the matrices that a rule's ``shape`` divides a weight into; () for one.

    The weight is viewed in that shape, where ``partition_dim`` is split; a list there has the sizes
    of the matrices. Raises ValueError for a shape that does not fit.
    """
    axis = 0 if kind == "column" else 1
    dimension, shape = rule.get("partition_dim"), rule.get("shape")
    if shape is None:
        if dimension not in (None, axis):
            raise ValueError(
                f"{RULES}: the rule for {name} has partition_dim {dimension}, but {kind} splits "
                f"dimension {axis}: write the other partition_type"
            )
        return ()
    dimension = axis if dimension is None else dimension
    before, inner, size = prod(shape[axis:dimension]), shape[dimension], weight[axis]
    if isinstance(inner, list | tuple):
        sizes = (*inner,) * before
    else:  # so many of equal size; -1: one
        count = before * (1 if inner == -1 else inner)
        sizes = (size // (count or 1),) * count
    last = shape[-1] if kind == "column" else -1
    if sum(sizes) != size or min(sizes) < 1 or last not in (-1, weight[1]):
        raise ValueError(
            f"{RULES}: the shape {list(shape)} of the rule for {name} does not fit its weight "
            f"{list(weight)}, of which {kind} splits dimension {axis}: correct it"
        )
    return sizes if len(sizes) > 1 else ()
