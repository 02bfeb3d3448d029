"""Models of transformers by their families, small, with inputs for them: built from nothing but
what a configuration class says of itself.
"""

import copy
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

SMALL: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "projection_dim", "emb_dim"),
            *("embedding_size", "model_dim", "word_embed_proj_dim", "d_embed", "out_hidden_size"),
            *("pooler_hidden_size", "decoder_hidden_size", "encoder_hidden_dim"),
        ),
        32,
    ),
    **dict.fromkeys(
        (
            *("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim", "ffn_hidden_size"),
            *("encoder_ffn_dim", "decoder_ffn_dim", "decoder_intermediate_size", "d_inner"),
            *("moe_intermediate_size", "shared_expert_intermediate_size", "dim_feedforward"),
        ),
        64,
    ),
    **dict.fromkeys(
        (
            *("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers"),
            *("n_layers", "num_decoder_layers", "depth", "decoder_num_hidden_layers"),
            *("num_encoder_layers", "encoder_num_layers", "decoder_num_layers"),
        ),
        2,
    ),
    **dict.fromkeys(
        (
            *("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"),
            *("decoder_attention_heads", "num_key_value_heads", "decoder_num_attention_heads"),
        ),
        4,
    ),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size", "kv_channels"), 8),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok"), 2
    ),
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "image_size": 32,
    "patch_size": 8,
    "rotary_dim": 4,
}
"""What the sizes of configurations are called, and what makes a model small."""
WITHOUT_DICE = ("dropout", "drop_rate", "pdrop", "drop_path", "jitter", "layerdrop")
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
SOME = (
    *("albert", "bart", "bert", "bloom", "codegen", "convnext", "deberta-v2", "deit", "distilbert"),
    *("electra", "falcon", "gemma2", "gpt2", "gpt_neo", "gpt_neox", "llama", "marian", "mbart"),
    *("mistral", "mixtral", "mpt", "opt", "phi3", "qwen2", "qwen3_moe", "resnet", "roberta"),
    *("roformer", "starcoder2", "t5", "vit"),
)
"""Families of language, of images and of both kinds of experts that every release trains."""


def shrink(config: Any) -> Any:
    """The configuration with every size made small, those of its parts too."""
    depth = getattr(config, "num_hidden_layers", None)
    for name, value in list(vars(config).items()):
        own = getattr(type(config), "attribute_map", {}).get(name, name)
        small = SMALL.get(name, SMALL.get(own))
        if small is not None and type(value) is int:
            setattr(config, name, min(value, small))
        elif name in TOKENS and isinstance(value, int):
            setattr(config, name, TOKENS[name])
        elif type(value) is float and any(each in name for each in WITHOUT_DICE):
            setattr(config, name, 0.0)
        elif name == "depths" and isinstance(value, list | tuple):  # of each stage, in layers
            setattr(config, name, type(value)(1 for _ in value))
        elif isinstance(value, list) and len(value) == depth:  # a word for each layer
            setattr(config, name, value[: SMALL["num_hidden_layers"]])
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value)
    config.use_cache = False
    return config


def small_model(model_type: str) -> nn.Module:
    """The first of the classes for this family; the same weights each time.

    Raises what transformers raises where the family cannot be built so.
    """
    from transformers.models.auto import configuration_auto

    config = shrink(copy.deepcopy(configuration_auto.CONFIG_MAPPING[model_type]()))
    kind = _class_for(type(config))
    torch.manual_seed(0)
    return kind(config)


def _class_for(configuration: type) -> Any:
    """The class that transformers itself would take, else one that names this configuration."""
    from transformers import PreTrainedModel
    from transformers.models.auto import modeling_auto

    mappings = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
        modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        modeling_auto.MODEL_MAPPING,
    )
    for mapping in mappings:
        if configuration in mapping:
            found = mapping[configuration]
            return found[0] if isinstance(found, tuple) else found
    module = import_module(configuration.__module__.replace("configuration_", "modeling_"))
    for each in vars(module).values():
        is_model = isinstance(each, type) and issubclass(each, PreTrainedModel)
        if is_model and each.config_class is configuration and "PreTrained" not in each.__name__:
            return each
    raise LookupError("no class of models is of this configuration by itself")


def inputs_of(model: Any, seed: int) -> dict[str, Tensor]:
    """Arguments of a forward, by the main input that the class names: the first of several."""
    named = model.main_input_name
    name = named if isinstance(named, str) else named[0]
    generator = torch.Generator().manual_seed(seed)
    if name == "pixel_values":
        size = getattr(model.config, "image_size", 96)
        size = size if isinstance(size, int) else size[0]
        channels = getattr(model.config, "num_channels", 3)
        return {"pixel_values": torch.randn(2, channels, size, size, generator=generator)}
    tokens = torch.randint(3, 97, (2, 16), generator=generator)
    found = {name: tokens}
    if model.config.is_encoder_decoder:
        found["decoder_input_ids"] = tokens
    return found


def loss_of(outputs: Any) -> Tensor:
    """Something to descend, of whatever a model returns first."""
    first = next(each for each in outputs.values() if isinstance(each, Tensor))
    return first.float().square().mean()
