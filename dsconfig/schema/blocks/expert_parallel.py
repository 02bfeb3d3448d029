"""AutoEP: expert parallelism for mixture-of-experts models."""

from typing import Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import AtLeastOne, Integer, Natural, Number, OrNativeAuto
from dsconfig.schema.value_checks import ONLY_NULL


class ExpertParallel(Block, since="0.19.2"):
    """AutoEP; values are checked while it is enabled, when the engine is initialized."""

    enabled: bool = key(False, "Enables AutoEP.")
    autoep_size: AtLeastOne = key(
        1,
        "Expert-parallel degree; must divide the world size and the number of experts.",
    )
    expert_tensor_parallel_size: AtLeastOne = key(
        1, "Reserved; only 1 is accepted.", since="0.19.3"
    )
    validate_folding_routing: bool = key(
        False, "Validate routing when AutoTP is enabled as well.", since="0.19.3"
    )
    async_split_plan: bool = key(
        False, "Plan token splits asynchronously; not supported with AutoTP.", since="0.19.8"
    )

    # Detection of experts in the model.
    preset_model: str | None = key(None, "Built-in preset for an architecture.")
    moe_layer_pattern: str | None = key(None, "Regular expression for MoE layer names.")
    expert_pattern: str | None = key(None, "Attribute of the experts; no dots.")
    router_pattern: str | None = key(None, "Attribute of the router; no dots.")
    expert_w1: str | None = key(None, "Attribute of an expert's first weight.")
    expert_w2: str | None = key(None, "Attribute of an expert's second weight.")
    expert_w3: str | None = key(
        None,
        "Attribute of an expert's third weight; explicit null: gate and up are fused.",
    )
    num_experts_attr: str | None = key(None, "Model config attribute for the number of experts.")
    top_k_attr: str | None = key(
        None, "Model config attribute for the number of experts per token."
    )
    has_shared_experts: bool | None = key(
        None, "Whether the model has shared experts, which process every token."
    )
    shared_experts_pattern: str | None = key(None, "Attribute of the shared experts.")
    shared_experts_gate_pattern: str | None = key(None, "Attribute of the shared experts' gate.")
    expert_activation: str | None = key(None, "Activation of the experts.", since="0.19.8")

    # Routing.
    top_k: OrNativeAuto[Integer] = key("auto", "Experts per token.")
    score_func: Literal["auto", "softmax", "sigmoid"] = key(
        "auto", "Scoring function of the router."
    )
    score_apply: Literal["auto", "pre", "post"] = key(
        "auto", "Apply scores before or after the experts."
    )
    route_norm: bool | None = key(None, "Normalize the scores; null: follow the preset.")
    route_scale: Number = key(1.0, "Scaling factor of the scores.")
    routed_scaling_factor: OrNativeAuto[Number] = key(
        "auto", "Scaling factor of the routed output; auto: the model's."
    )
    num_expert_groups: AtLeastOne | None = key(None, "Number of expert groups.")
    num_limited_groups: AtLeastOne | None = key(
        None, "Number of groups a token may use; at most num_expert_groups."
    )
    load_balance_coeff: None = key(
        None, "Only null is accepted.", checked="0.19.2", checks=(ONLY_NULL,)
    )

    # Kernels and communication.
    use_grouped_mm: bool = key(True, "Use a grouped matrix multiplication for all experts.")
    disable_triton_grouped_mm: bool = key(
        False, "Do not use Triton for the grouped matrix multiplication.", since="0.19.4"
    )
    gate_up_impl: Literal["separate", "fused"] = key(
        "separate", "Separate or fused gate and up projections.", since="0.19.8"
    )
    combine_impl: Literal["auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm"] = key(
        "auto", "Implementation that combines expert outputs."
    )
    row_weighting_impl: Literal["auto", "eager", "fused"] = key(
        "auto", "Implementation of row weighting; fused requires deepep.", since="0.19.8"
    )
    comm_backend: Literal["comm", "deepep"] = key(
        "comm", "Backend for exchanging tokens between ranks.", since="0.19.7"
    )
    comm_num_sm: AtLeastOne = key(
        12, "Streaming multiprocessors reserved for DeepEP.", since="0.19.7"
    )
    comm_qp_margin: Natural = key(4, "Extra queue pairs of DeepEP.", since="0.19.7")
    comm_max_tokens_per_rank: Natural = key(
        0,
        "Maximum number of tokens per rank; must be above 0 with deepep.",
        unit="tokens",
        since="0.19.7",
    )
