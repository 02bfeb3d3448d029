"""Modules that stage 3 of ZeRO gathers as one."""

from dsconfig.schema.declare import Block, Kind, key

MIXTURES_OF_EXPERTS = [
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
]


class LeafModule(Block, since="0.18.0", closed="0.18.0"):
    """Modules that stage 3 gathers as one."""

    classes: list[str] = key(
        MIXTURES_OF_EXPERTS, "Class paths of such modules.", read_as=Kind.TEXT_OR_STRINGS
    )
    names: list[str] = key([], "Full names of such modules.", read_as=Kind.TEXT_OR_STRINGS)
    name_suffixes: list[str] = key(
        [], "Endings of the names of such modules.", read_as=Kind.TEXT_OR_STRINGS
    )
