"""ZenFlow and leaf modules."""

from typing import Literal

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.markers import Bounds
from dsconfig.schema.types import Integer, OpenShare, OrNativeAuto, Share


class ZenFlow(Block, since="0.17.5", closed="0.17.5"):
    """ZenFlow: immediate GPU updates of important columns, delayed CPU updates of others."""

    topk_ratio: OpenShare = key(
        0.1,
        "Fraction of gradient columns treated as important.",
        bounds_was={"0.19.6": Bounds(minimum=0.0, maximum=1.0)},
    )
    select_strategy: Literal["auto", "step", "epoch"] = key(
        "auto", "Unit of select_interval.", read_as=ReadAs.STR
    )
    select_interval: OrNativeAuto[Integer] = key(
        "auto", "Steps or epochs between two column selections."
    )
    update_interval: OrNativeAuto[Integer] = key(
        "auto", "Steps between two updates of the other columns; at least 1."
    )
    full_warm_up_rounds: Integer = key(0, "Initial steps that update all columns.", unit="steps")
    overlap_step: bool = key(False, "Overlap CPU updates with the next step.")
    offload: bool = key(
        False, "Keep the states of important columns on the CPU; requires overlap_comm."
    )
    auto_ratio: Share = key(
        0.99, "Fraction of the gradient norm that triggers an automatic update."
    )
    pt_reserved_cores_perc: Share = key(
        0.5, "Fraction of CPU cores reserved for PyTorch.", since="0.17.6"
    )
    steps_per_epoch: Integer | None = key(None, "Set internally by the engine.", unit="steps")


MIXTURES_OF_EXPERTS = [
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
]


class LeafModule(Block, since="0.18.0", closed="0.18.0"):
    """Modules that stage 3 gathers as one unit."""

    classes: list[str] = key(
        MIXTURES_OF_EXPERTS, "Class paths of leaf modules.", read_as=ReadAs.TEXT_OR_STRINGS
    )
    names: list[str] = key([], "Full names of leaf modules.", read_as=ReadAs.TEXT_OR_STRINGS)
    name_suffixes: list[str] = key(
        [], "Name suffixes of leaf modules.", read_as=ReadAs.TEXT_OR_STRINGS
    )
