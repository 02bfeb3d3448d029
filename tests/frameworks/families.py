"""Small models of transformers' families with inputs, built from configuration classes only."""

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
"""Small values for the attributes with which configurations name sizes."""
RANDOM_OPTIONS = ("dropout", "drop_rate", "pdrop", "drop_path", "jitter", "layerdrop")
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
SOME = (
    *("albert", "bart", "bert", "bloom", "codegen", "convnext", "deberta-v2", "deit", "distilbert"),
    *("electra", "falcon", "gemma2", "gpt2", "gpt_neo", "gpt_neox", "llama", "marian", "mbart"),
    *("mistral", "mixtral", "mpt", "opt", "phi3", "qwen2", "qwen3_moe", "resnet", "roberta"),
    *("roformer", "starcoder2", "t5", "vit"),
)
"""Language, vision and mixture-of-experts families that every release trains."""


def shrink(config: Any, **sizes: int) -> Any:
    """Reduce all sizes in a configuration, including nested ones; ``sizes`` replace ``SMALL``."""
    depth = getattr(config, "num_hidden_layers", None)
    for name, value in list(vars(config).items()):
        own = getattr(type(config), "attribute_map", {}).get(name, name)
        chosen = SMALL | sizes
        small = chosen.get(name, chosen.get(own))
        if small is not None and type(value) is int:
            setattr(config, name, min(value, small))
        elif name in TOKENS and isinstance(value, int):
            setattr(config, name, TOKENS[name])
        elif type(value) is float and any(option in name for option in RANDOM_OPTIONS):
            setattr(config, name, 0.0)
        elif name == "depths" and isinstance(value, list | tuple):  # layers of each stage
            setattr(config, name, type(value)(1 for _ in value))
        elif isinstance(value, list) and len(value) == depth:  # one entry per layer
            setattr(config, name, value[: SMALL["num_hidden_layers"]])
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value, **sizes)
    config.use_cache = False
    return config


def small_model(model_type: str) -> nn.Module:
    """Build a model of the family's first class, with deterministic weights.

    Raises the errors of transformers if the family cannot be built this way.
    """
    return model_of(small_config(model_type))


def small_config(model_type: str, **sizes: int) -> Any:
    """Return the configuration of a family with the sizes of ``SMALL`` and ``sizes``."""
    from transformers.models.auto import configuration_auto

    return shrink(copy.deepcopy(configuration_auto.CONFIG_MAPPING[model_type]()), **sizes)


def model_of(config: Any) -> nn.Module:
    """Build a model with deterministic weights from its configuration."""
    torch.manual_seed(0)
    return _class_for(type(config))(config)


def _class_for(configuration: type) -> Any:
    """Return the class transformers would choose, or one with this configuration class."""
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
    for cls in vars(module).values():
        is_model = isinstance(cls, type) and issubclass(cls, PreTrainedModel)
        if is_model and cls.config_class is configuration and "PreTrained" not in cls.__name__:
            return cls
    raise LookupError("no model class has this configuration")


def inputs_of(model: Any, seed: int, vocabulary: int = 97) -> dict[str, Tensor]:
    """Return arguments of forward for the first main input of the class."""
    named = model.main_input_name
    name = named if isinstance(named, str) else named[0]
    generator = torch.Generator().manual_seed(seed)
    if name == "pixel_values":
        size = getattr(model.config, "image_size", 96)
        size = size if isinstance(size, int) else size[0]
        channels = getattr(model.config, "num_channels", 3)
        return {"pixel_values": torch.randn(2, channels, size, size, generator=generator)}
    tokens = torch.randint(3, vocabulary, (2, 16), generator=generator)
    found = {name: tokens}
    if model.config.is_encoder_decoder:
        found["decoder_input_ids"] = tokens
    return found


def loss_of(outputs: Any) -> Tensor:
    """Return a loss computed from the model's first output."""
    first = next(output for output in outputs.values() if isinstance(output, Tensor))
    return first.float().square().mean()
