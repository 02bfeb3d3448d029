"""Parts of ZeRO that few files have: ZenFlow, and modules that are gathered as one."""

from typing import Literal

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.markers import Bounds
from dsconfig.schema.types import Integer, OpenShare, OrNativeAuto, Share


class ZenFlow(Block, since="0.17.5", closed="0.17.5"):
    """Updates the important columns at once on the GPU, the rest later on the CPU."""

    topk_ratio: OpenShare = key(
        0.1,
        "Share of gradient columns that count as important.",
        bounds_was={"0.19.6": Bounds(minimum=0.0, maximum=1.0)},
    )
    select_strategy: Literal["auto", "step", "epoch"] = key(
        "auto", "What counts the time between two selections.", read_as=ReadAs.STR
    )
    select_interval: OrNativeAuto[Integer] = key(
        "auto", "Steps or epochs between two selections of columns."
    )
    update_interval: OrNativeAuto[Integer] = key(
        "auto", "Steps between two updates of the rest; a number is at least 1."
    )
    full_warm_up_rounds: Integer = key(0, "First rounds that update everything.", unit="steps")
    overlap_step: bool = key(False, "Updates on the CPU while the next step runs.")
    offload: bool = key(
        False, "Keeps the states of important columns on the CPU; needs overlap_comm."
    )
    auto_ratio: Share = key(0.99, "Share of the gradient norm that starts an automatic update.")
    pt_reserved_cores_perc: Share = key(0.5, "Share of the cores left to PyTorch.", since="0.17.6")
    steps_per_epoch: Integer | None = key(None, "Set by the engine itself.", unit="steps")


MIXTURES_OF_EXPERTS = [
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
]


class LeafModule(Block, since="0.18.0", closed="0.18.0"):
    """Modules that stage 3 gathers as one."""

    classes: list[str] = key(
        MIXTURES_OF_EXPERTS, "Class paths of such modules.", read_as=ReadAs.TEXT_OR_STRINGS
    )
    names: list[str] = key([], "Full names of such modules.", read_as=ReadAs.TEXT_OR_STRINGS)
    name_suffixes: list[str] = key(
        [], "Endings of the names of such modules.", read_as=ReadAs.TEXT_OR_STRINGS
    )
