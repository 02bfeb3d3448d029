"""What the tensor-parallel plan of a family splits over ranks, and what every rank has whole."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.facts.hf_attributes import tensor_plan

OUTSIDE_BLOCKS = {"embed_tokens": "embedding_rowwise", "lm_head": "colwise_gather_output"}
"""What models of transformers add to the plan of their family."""
PER_HEAD = "colwise"
"""The style whose outputs stay split: of attention, each rank has some heads."""
EXPERTS_SPLIT = "moe_tp_experts"
"""The style that splits every expert over ranks."""


class Split(NamedTuple):
    """The dimension of a tensor that is divided, and its size (0: any degree divides it)."""

    dimension: int
    size: int


EVENLY = Split(0, 0)
"""A tensor of a model whose plan is not known."""


def splits_heads(family: str | None) -> bool:
    """Return whether the degree has to divide heads, as it does if no plan is known."""
    plan = tensor_plan(family)
    return not plan or PER_HEAD in plan.values()


def splits_attention(family: str | None) -> bool:
    """Return whether each rank computes a part of attention, as it does if no plan is known."""
    plan = tensor_plan(family)
    styles = (plan[name] for name in plan if "attn" in name or "attention" in name)
    return not plan or PER_HEAD in styles


def splits_experts(family: str | None) -> bool:
    """Return whether each rank has a part of every expert."""
    return EXPERTS_SPLIT in tensor_plan(family).values()


def split_of(module: str, tensor: str, shape: tuple[int, ...], family: str | None) -> Split | None:
    """Return how a tensor of a module is split; None if every rank has it whole.

    Without a plan (of ``layer_specs`` nothing is known here) every tensor is.
    """
    plan = tensor_plan(family)
    if not plan:
        return EVENLY
    place = module.removesuffix(".base_layer")
    style = _style(f"{place}.{tensor}", plan) or _style(place, plan)
    if "colwise" in style:
        dimension = max(len(shape) - 2, 0)
    elif "rowwise" in style and len(shape) > 1:
        dimension = len(shape) - 1
    else:
        return None
    if style.startswith("embedding"):  # its rows are what others call inputs
        dimension = 1 - dimension
    return Split(dimension, shape[dimension])


def _style(name: str, plan: Mapping[str, str]) -> str:
    """Return the style of a layer by its full name, whose first parts a plan leaves out."""
    parts = re.sub(r"\.\d+(?=\.|$)", ".*", name).split(".")
    for start in range(len(parts)):
        shorter = ".".join(parts[start:])
        if style := plan.get(shorter) or OUTSIDE_BLOCKS.get(shorter):
            return style
    return ""
