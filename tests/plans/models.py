"""Small models of the families that ranks divide."""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from frameworks import families
from frameworks.families import RANDOM_OPTIONS, TOKENS
from frameworks.family_sweep import HEADS, automatic_class
from training.sequence_jobs import sample_batch, token_losses

Inputs = dict[str, Tensor]
VOCABULARY = 96
SIZES = {
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "head_dim"), 8),
    **dict.fromkeys(("linear_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_head_dim", "o_lora_rank"), 16),
    **dict.fromkeys(("num_experts_per_token", "num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_shared_experts"), 1),
    **dict.fromkeys(("linear_num_heads", "linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("dense_intermediate_size", "intermediate_size_mlp", "mlp_hidden_size"), 64),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "mamba_chunk_size", "chunk_size"), 16),
    **dict.fromkeys(("index_head_dim", "index_n_heads", "swa_head_dim", "swa_v_head_dim"), 8),
    "o_groups": 2,
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "index_topk": 8,
    "sliding_window": 8,
}
"""Sizes that two ranks divide; those that DeepSpeed-style MoE and latent attention need."""


MIXED: dict[str, Any] = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_topk"), 2),
    "moe_intermediate_size": 64,
}
DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")


OPTIONS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 0, "mask_token_id": 5},
    "falcon_h1": {"mamba_d_ssm": 64},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"]},
    "mamba2": {"expand": 1, "n_groups": 1},
    "reformer": {"axial_pos_embds": False},
    "xlstm": {"embedding_dim": 32, "num_blocks": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"mamba_headdim": 8, "attention_head_dim": 16, "attention_hidden_size": 64},
}
"""Values without which a family with divided sequences cannot be built or called."""
DROPOUT = 0.1


def small_model(
    family: str, *, mixed: bool = False, axis: str = "tensor", dropout: bool = False
) -> Any:
    """Build a model in training mode without zero weights, whose gradients would be zero as well.

    ``mixed``: the last layer has experts. ``axis``: one of ``HEADS``, or another for the family's
    first class. ``dropout``: every probability of the configuration is ``DROPOUT``. Raises the
    errors of transformers if the family cannot be built this way.
    """
    config = families.small_config(family, **SIZES)
    _complete(config)
    if mixed:
        _mix(config)
    if dropout:
        _set_dropout(config)
    model = _model_with_head(family, config, axis) if axis in HEADS else families.model_of(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.train()


def _model_with_head(family: str, config: Any, axis: str) -> Any:
    for name, value in ({"is_decoder": axis == "sequence"} | OPTIONS.get(family, {})).items():
        if hasattr(config, name):
            setattr(config, name, value)
    if axis in ("classification", "tokens"):
        config.num_labels = VOCABULARY
        for each in (config, config.get_text_config()):
            each.pad_token_id, each.classifier_dropout = TOKENS["pad_token_id"], 0.0
    torch.manual_seed(0)
    return automatic_class(axis).from_config(config, dtype=torch.float32)


def _complete(config: Any) -> None:
    """Set sizes that the defaults leave open, and those in other forms than integers."""
    for name, value in list(vars(config).items()):
        if value is None and name in ("head_dim", "num_key_value_heads", "num_attention_heads"):
            setattr(config, name, families.SMALL[name])
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _complete(value)
        elif name == "rope_parameters" and isinstance(value, dict):
            half = int(SIZES["head_dim"] * value.get("partial_rotary_factor", 1)) // 2
            value["mrope_section"] = [half - 2, 1, 1]  # of multimodal models


def _mix(config: Any) -> None:
    """Give the last layer of a configuration experts."""
    for name, value in list(vars(config).items()):
        if name in MIXED and value in (None, 0, 1):
            setattr(config, name, MIXED[name])
        elif name in DENSE_FIRST and isinstance(value, int):
            setattr(config, name, min(value, 1))
        elif name == "mlp_layer_types" and isinstance(value, list) and value:
            setattr(config, name, [*value[:-1], "sparse"])
        elif name == "enable_moe_block":
            setattr(config, name, True)
        elif name == "mlp_only_layers":
            setattr(config, name, [])
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _mix(value)


def _set_dropout(config: Any) -> None:
    for name, value in list(vars(config).items()):
        if type(value) in (int, float) and any(option in name for option in RANDOM_OPTIONS):
            setattr(config, name, DROPOUT)
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _set_dropout(value)


def loss_of(model: Any, inputs: Inputs) -> Tensor:
    return families.loss_of(model(**{name: inputs[name] for name in inputs if name != "labels"}))


def token_loss(model: Any, inputs: Inputs) -> Tensor:
    """Return the part of this rank in the mean loss of the labelled tokens of all ranks, times the
    number of ranks; with the same samples on every rank, the mean loss."""
    total, count = token_losses(model, inputs)
    counts = torch.tensor(float(count))
    dist.all_reduce(counts)
    return total * dist.get_world_size() / counts


def inputs_of(model: Any) -> Inputs:
    """Return arguments of forward with which the loss depends on the weights.

    Raises the error of the first arguments tried if there are none.
    """
    return _first_usable(model, _guesses(model), loss_of)


def sequences_of(model: Any, axis: str, *, padded: bool) -> Inputs:
    """Return labels with the arguments of forward that ranks divide.

    Other arguments than tokens and labels are left out only if the model does not take them. Raises
    the error of the first arguments tried if there are none.
    """
    batch = sample_batch("right padding" if padded else "causal", 0)
    if axis == "classification":
        batch["input_ids"] = _ended(batch["input_ids"])
    if model.config.is_encoder_decoder and axis != "sequence":
        batch |= {f"decoder_{name}": value for name, value in batch.items() if name != "labels"}
    batches = [batch]
    if axis == "speech" and model.config.is_encoder_decoder:
        spoken = {name: batch[name] for name in batch if name == "labels" or "decoder" in name}
        batches = [spoken | audio for audio in _audio()]
    optional = [name for name in batches[0] if name.endswith(("position_ids", "attention_mask"))]
    guesses = (
        {name: value for name, value in each.items() if name not in left_out}
        for count in range(len(optional) + 1)
        for left_out in combinations(optional, count)
        for each in batches
    )
    return _first_usable(model, guesses, loss_on(axis))


def loss_on(axis: str) -> Callable[[Any, Inputs], Tensor]:
    """Return the loss of models on an axis: that of tokens, unless a sample has one output."""
    return token_loss if axis in HEADS and axis != "classification" else loss_of


def _ended(tokens: Tensor) -> Tensor:
    """Return ``tokens`` of which the last one of each sample, and no other, ends it."""
    end = TOKENS["eos_token_id"]
    tokens = tokens.masked_fill(tokens == end, end + 1)
    tokens[:, -1] = end
    return tokens


def _audio() -> Iterator[Inputs]:
    yield {"input_values": torch.linspace(-1, 1, 8000).view(2, 4000)}
    for bins in (80, 128):
        yield {"input_features": torch.randn(2, bins, 3000)}
        yield {"input_features": torch.randn(2, 100, bins)}


def _first_usable(
    model: Any, guesses: Iterable[Inputs], loss_of: Callable[[Any, Inputs], Tensor]
) -> Inputs:
    first: Exception | None = None
    for inputs in guesses:
        try:
            loss_of(model, inputs).backward()
        except Exception as error:
            first = first or error
        else:
            model.zero_grad()
            return inputs
    raise LookupError(f"its inputs are unknown here: {type(first).__name__}: {first}") from first


def _guesses(model: Any) -> Iterator[Inputs]:
    vocabulary = min(VOCABULARY, getattr(model.config.get_text_config(), "vocab_size", VOCABULARY))
    yield families.inputs_of(model, 0, vocabulary)
    tokens = torch.randint(max(TOKENS.values()) + 1, vocabulary, (2, 16))
    yield {"input_ids": tokens}
    yield {"input_ids": tokens, "decoder_input_ids": tokens}
    yield {"inputs_embeds": torch.randn(2, 16, 32)}
    yield {"input_ids": tokens, "encoder_hidden_states": torch.randn(2, 16, 32)}
    for size in (32, 64):
        yield {"pixel_values": torch.randn(2, 3, size, size)}
