"""AutoEP: expert parallelism for mixture-of-experts models."""

from typing import Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import AtLeastOne, Integer, Natural, Number, OrNativeAuto
from dsconfig.schema.value_checks import ONLY_NULL


class ExpertParallel(Block, since="0.19.2"):
    """AutoEP; values are checked while it is enabled, when the engine is built."""

    enabled: bool = key(False, "Turns AutoEP on.")
    autoep_size: AtLeastOne = key(
        1, "Ranks that share the experts; must divide the ranks and the experts."
    )
    expert_tensor_parallel_size: AtLeastOne = key(
        1, "Reserved; only 1 is accepted.", since="0.19.3"
    )
    validate_folding_routing: bool = key(
        False, "Checks routing more closely where AutoTP is on too.", since="0.19.3"
    )
    async_split_plan: bool = key(
        False, "Plans token splits asynchronously; not with AutoTP.", since="0.19.8"
    )

    # How the experts are found in the model.
    preset_model: str | None = key(None, "Built-in description of an architecture.")
    moe_layer_pattern: str | None = key(None, "Regular expression that finds the blocks.")
    expert_pattern: str | None = key(None, "Attribute that holds the experts; no dots.")
    router_pattern: str | None = key(None, "Attribute that holds the router; no dots.")
    expert_w1: str | None = key(None, "Attribute of an expert's first weight.")
    expert_w2: str | None = key(None, "Attribute of an expert's second weight.")
    expert_w3: str | None = key(
        None, "Attribute of an expert's third weight; a written null fuses gate and up."
    )
    num_experts_attr: str | None = key(None, "Attribute of the model config: experts.")
    top_k_attr: str | None = key(None, "Attribute of the model config: experts per token.")
    has_shared_experts: bool | None = key(None, "Whether some experts see every token.")
    shared_experts_pattern: str | None = key(None, "Attribute that holds those experts.")
    shared_experts_gate_pattern: str | None = key(None, "Attribute that holds their gate.")
    expert_activation: str | None = key(None, "Activation of the experts.", since="0.19.8")

    # How tokens are routed.
    top_k: OrNativeAuto[Integer] = key("auto", "Experts per token.")
    score_func: Literal["auto", "softmax", "sigmoid"] = key("auto", "Score of the router.")
    score_apply: Literal["auto", "pre", "post"] = key(
        "auto", "Whether scores act before or after the experts."
    )
    route_norm: bool | None = key(None, "Normalises the scores; null follows the preset.")
    route_scale: Number = key(1.0, "Factor on the scores.")
    routed_scaling_factor: OrNativeAuto[Number] = key(
        "auto", "Scale of the routed output; auto takes the model's."
    )
    num_expert_groups: AtLeastOne | None = key(None, "Groups that experts are sorted into.")
    num_limited_groups: AtLeastOne | None = key(
        None, "Groups one token may use; at most num_expert_groups."
    )
    load_balance_coeff: None = key(
        None, "Only null is accepted.", checked="0.19.2", checks=(ONLY_NULL,)
    )

    # Kernels and communication.
    use_grouped_mm: bool = key(True, "Multiplies all experts' matrices in one call.")
    disable_triton_grouped_mm: bool = key(
        False, "Keeps that call away from Triton.", since="0.19.4"
    )
    gate_up_impl: Literal["separate", "fused"] = key(
        "separate", "Whether gate and up projections are one.", since="0.19.8"
    )
    combine_impl: Literal["auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm"] = key(
        "auto", "How the experts' outputs are added up."
    )
    row_weighting_impl: Literal["auto", "eager", "fused"] = key(
        "auto", "How rows are weighted; fused needs deepep.", since="0.19.8"
    )
    comm_backend: Literal["comm", "deepep"] = key(
        "comm", "How tokens travel between ranks.", since="0.19.7"
    )
    comm_num_sm: AtLeastOne = key(12, "Multiprocessors given to DeepEP.", since="0.19.7")
    comm_qp_margin: Natural = key(4, "Spare queue pairs of DeepEP.", since="0.19.7")
    comm_max_tokens_per_rank: Natural = key(
        0, "Most tokens one rank routes; above 0 with deepep.", unit="tokens", since="0.19.7"
    )
