"""A model from a config.json of Hugging Face's format."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from dsconfig.facts import architectures, hf_attributes, inputs, mixers, mixtures, naming
from dsconfig.facts.architectures import HOME_OF_FAMILY
from dsconfig.facts.inputs import FactError
from dsconfig.facts.model import Architecture, ModelOutline, ModelTree, ModuleFact, with_counts
from dsconfig.facts.naming import named
from dsconfig.source.plain import shown
from dsconfig.source.pointer import is_block, is_list

# Names that families use for each size, the most common first.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "kv_heads"),
    "head_dim": ("head_dim", "d_kv"),
    "intermediate_size": (
        "intermediate_size",
        "n_inner",
        "d_ff",
        "ffn_dim",
        "ffn_hidden_size",
        "dff",
    ),
    "vocab_size": ("vocab_size",),
    "max_positions": ("max_position_embeddings", "n_positions", "n_ctx", "max_positions"),
}
_NESTED = ("text_config", "thinker_config", "decoder", "encoder", "llm_config", "language_config")
"""Parts of a multi-part config that contain the language model, in search order."""
_TOWERS = frozenset(
    (
        *("vision_config", "audio_config", "talker_config", "token2wav_config", "code2wav_config"),
        *("vq_config", "qformer_config", "perceiver_config", "speech_config", "audio_encoder"),
        *("audio_encoder_config", "depth_decoder_config", "codec_config", "projector_config"),
        *("vision_tower_config", "vision_model_config", "sam_config", "detection_config"),
        *("img_processor", "audio_processor", "visual", "encoder"),
    )
)
"""Blocks of a config that describe parts beside the language model."""
_TEXT_FAMILIES = {
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_text"), "qwen3"),
    **dict.fromkeys(("qwen3_vl_moe", "qwen3_vl_moe_text"), "qwen3_moe"),
}
"""Types whose language model has the layers of another family."""
MAX_VALUES = 200_000
"""Layers x experts; far above any model, but still fast to count."""
_EXTRAS = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "index_n_heads",
    "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
    "moe_latent_size",
    "zero_expert_num",
)
_LATENT = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
_GATED_HOMES = ("llama", "deepseek", "gpt_oss", "hybrid")
_GATED_FAMILIES = frozenset({"bitnet", "modernbert-decoder", "vaultgemma"})
"""Other families whose MLP has a gate regardless of the activation."""

_UNLIKE = frozenset(
    {
        "electra",
        "git",
        "hrm_text",
        "jetmoe",
        "moshi",
        "phi4_multimodal",
        "rembert",
        "roc_bert",
        "rwkv",
        "xlnet",
        "xmod",
        "zamba",
        "zamba2",
    }
)
"""Types whose parameter count differs by more than 3% from the default of their class in
transformers 5.23 (``tests/facts/test_causal_types.py`` checks all causal language models)."""


class SizesUnknown(FactError):
    """A config that names a model but not all of its sizes."""


def from_path(path: str | Path) -> ModelTree | ModelOutline:
    """Return the model described by a config.json, or its outline if sizes are missing.

    Raises FactError if a size is not a number or the file is not a config.
    """
    file = Path(path)
    return _cached(str(file), file.stat().st_mtime_ns, naming.current())


@lru_cache(maxsize=16)
def _cached(path: str, _changed: int, _surface: naming.Surface) -> ModelTree | ModelOutline:
    return model_or_outline(inputs.read_file(path, "model"), name=path)


def model_or_outline(config: Mapping[str, Any], name: str = "model") -> ModelTree | ModelOutline:
    """Return the model, or its outline if the config does not state all sizes."""
    try:
        return model(config, name)
    except SizesUnknown as unknown:
        if not ({"model_type", *hf_attributes.WIDTHS} & config.keys()):
            raise
        attributes = hf_attributes.attributes(config)
        width = attributes.get("hidden_size")
        return ModelOutline(
            name=name,
            why=str(unknown),
            hidden_size=width if type(width) is int else None,
            config=MappingProxyType(attributes),
        )


def model(config: Mapping[str, Any], name: str = "model") -> ModelTree:
    """Return the model that a config describes, including nested text, decoder and encoder parts.

    Raises FactError if no part has a width and a depth, or if there is no vocabulary.
    """
    _check_family(config)
    part = language_part(config)
    if part is None:
        remedy = f"add hidden_size and num_hidden_layers, or specify {named('params')}"
        raise SizesUnknown("model", f"{name} has no hidden size or number of layers; {remedy}")
    if "model_type" not in part and config.get("model_type") in _TEXT_FAMILIES:
        part = {**part, "model_type": config["model_type"]}
    tied = config.get("tie_word_embeddings")
    if tied is not None and part is not config:
        part = {**part, "tie_word_embeddings": tied}  # the top-level setting wins
    shape = _sizes(part)
    if not shape.vocab_size:
        remedy = f"add it, or specify {named('params')}"
        raise SizesUnknown("model", f"{name} has no vocab_size: {remedy}")
    dtype = config.get("dtype") or config.get("torch_dtype") or part.get("torch_dtype")
    dtype = dtype or part.get("dtype")
    trained_in = dtype if dtype in ("bfloat16", "float16", "float32") else None
    tree = _counted(name, shape) or _estimated(name, shape, part)
    missing = tuple(_assumed_sizes(part, shape))
    tree = replace(tree, assumed=(*tree.assumed, *missing)) if missing else tree
    tree = _with_towers(tree, config, part)
    attributes = MappingProxyType(hf_attributes.attributes(config))
    return replace(tree, config=attributes, trained_in=trained_in, stored_in=trained_in)


def _with_towers(tree: ModelTree, config: Mapping[str, Any], part: Mapping[str, Any]) -> ModelTree:
    """Return the tree with the vision tower, and a note on the parts that are not counted."""
    width = tree.architecture.hidden_size if tree.architecture is not None else 0
    part_is_whole = bool(_first(config, "hidden_size") and _depth(config))
    tower = architectures.tower_of(str(config.get("model_type")), config, width)
    if tower is not None:
        counted, part_of_tower = tower
        tree = _beside(tree, part_of_tower.placed())
        config = {key: value for key, value in config.items() if key != counted}
    nested = (config, *(config[key] for key in _NESTED if is_block(config.get(key))))
    left = {
        key: None
        for block in nested
        for key, value in block.items()
        if key in _TOWERS and is_block(value) and value is not part
    }
    if not left and (tower is not None or part_is_whole):
        return tree
    names = f": {', '.join(left)}" if left else " of this config"
    note = f"only the language model is counted, not the other towers{names}"
    return replace(tree, assumed=(*tree.assumed, note))


def _beside(tree: ModelTree, tower: ModuleFact) -> ModelTree:
    """Return the tree with another part."""
    if tree.root is not None:
        return with_counts(tree, replace(tree.root, children=(*tree.root.children, tower)))
    own = with_counts(tree, tower)
    sizes = ("largest_tensor", "largest_module")
    largest = {name: max(getattr(tree, name) or 0, getattr(own, name) or 0) for name in sizes}
    return replace(
        tree,
        parameters=tree.parameters + own.parameters,
        trainable=tree.trainable + own.trainable,
        **largest,
    )


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the innermost part with width and depth, searching nested parts in a fixed order."""
    if _first(config, "hidden_size") and _depth(config):
        return config
    for key in _NESTED:
        nested = config.get(key)
        if not isinstance(nested, dict):
            continue
        part = language_part(cast(Mapping[str, Any], nested))
        if part is not None:
            return part
    return None


def architecture_of(config: Mapping[str, Any]) -> Architecture | None:
    """Return the sizes of the language model in a config; None without width and depth.

    Raises FactError for values of the wrong type.
    """
    part = language_part(config)
    return None if part is None else _sizes(part)


def _sizes(config: Mapping[str, Any]) -> Architecture:
    """Return the sizes under whichever names the config uses; it has width and depth."""
    _check_family(config)
    hidden = _first(config, "hidden_size") or 0
    layers = _depth(config) or 0
    if layers * (mixtures.count(config, mixtures.EXPERTS) or 1) > MAX_VALUES:
        message = "the number of layers and experts is larger than any model has"
        raise SizesUnknown("model", f"{message}; fix the file, or specify {named('params')}")
    kind = config.get("model_type") or config.get("architecture")
    family = _TEXT_FAMILIES.get(str(kind), kind)
    mixture = mixtures.mixture_of(config, layers)
    dense = frozenset(mixture.get("dense_blocks", range(layers)))
    blocks = mixers.blocks_of(config, layers, hidden, lambda place: place not in dense)
    return Architecture(
        hidden_size=hidden,
        layers=layers,
        heads=_first(config, "heads") or max(1, hidden // 64),
        kv_heads=_kv_heads(config),
        head_dim=_first(config, "head_dim"),
        intermediate_size=_inner_width(config),
        vocab_size=_first(config, "vocab_size") or 0,
        max_positions=_first(config, "max_positions"),
        gated_mlp=_is_gated(config),
        tied_embeddings=_is_tied(config),
        query_key_norm=architectures.normalises_heads(family) or config.get("use_qk_norm") is True,
        family=family if isinstance(family, str) else None,
        **mixture,
        blocks=blocks,
        extras=_extras(config),
    )


def _extras(config: Mapping[str, Any]) -> Mapping[str, int]:
    """Return sizes that few families have; those of latent attention all together or not at all."""
    sizes = {name: config[name] for name in _EXTRAS if config.get(name) is not None}
    for name, value in sizes.items():
        inputs.size_in_model(name, value, least=0)
    if sizes.get("kv_lora_rank") or HOME_OF_FAMILY.get(str(config.get("model_type"))) == "deepseek":
        missing = [name for name in _LATENT if name not in sizes]
        if missing:
            remedy = f"latent attention requires them; add them, or specify {named('params')}"
            raise SizesUnknown("model", f"missing {', '.join(missing)}: {remedy}")
    return MappingProxyType(sizes)


def _check_family(config: Mapping[str, Any]) -> None:
    for key in ("model_type", "architecture"):
        if not isinstance(config.get(key) or "", str):
            raise FactError("model", f"{key} is {shown(config[key])}; it must be a string")


def _depth(config: Mapping[str, Any]) -> int | None:
    """Return the number of blocks, or the length of an explicit order."""
    return mixers.depth_of(config) or _first(config, "layers")


def _kv_heads(config: Mapping[str, Any]) -> int | None:
    """Return the key-value heads; older Falcon configs state a number that is not used."""
    if config.get("model_type") == "falcon" and not config.get("new_decoder_architecture"):
        return 1 if config.get("multi_query", True) else _first(config, "heads")
    return _first(config, "kv_heads")


def _inner_width(config: Mapping[str, Any]) -> int | None:
    """Return the width of the MLP; some families state a number that they do not use."""
    width, family = _first(config, "intermediate_size"), config.get("model_type")
    if family == "recurrent_gemma" and width:
        return width // 2
    if family == "granitemoehybrid":
        return mixtures.shared_width(config) or width  # next to experts, or alone without them
    if family == "lfm2":
        width = mixtures.count(config, ("block_ff_dim",)) or width
        if width and config.get("block_auto_adjust_ff_dim", True):
            step = mixtures.count(config, ("block_multiple_of",)) or 256
            factor = config.get("block_ffn_dim_multiplier") or 1.0
            inputs.require_non_negative(factor, "model", "block_ffn_dim_multiplier ")
            scaled = factor * int(2 * width / 3)
            inputs.require_non_negative(scaled, "model", "block_ffn_dim_multiplier x width ")
            return -(-inputs.size_in_model("the scaled width", int(scaled)) // step) * step
    return width


def _is_tied(config: Mapping[str, Any]) -> bool:
    """Return whether head and embedding are tied; files omit the default of their class."""
    message = config.get("tie_word_embeddings", config.get("tie_embedding"))
    named = config.get("model_type") or config.get("architecture")
    family = _TEXT_FAMILIES.get(str(named), named)
    return hf_attributes.ties_by_default(family) if message is None else bool(message)


def _first(config: Mapping[str, Any], name: str) -> int | None:
    for key in _NAMES[name]:
        value = mixtures.repeated(config.get(key))
        if value is None or (value == 0 and name == "head_dim"):  # 0: latent attention instead
            continue
        if _differs(value):
            message = f"{key} is {shown(value)}: it differs between parts of the model"
            raise SizesUnknown("model", f"{message}; specify {named('params')}")
        return inputs.size_in_model(key, value)
    return None


def _differs(value: object) -> bool:
    """Return whether a value is one size per stage or per part of the model."""
    sizes = value.values() if is_block(value) else value if is_list(value) else ()
    return bool(sizes) and all(type(size) is int and size > 0 for size in sizes)


def _assumed_sizes(config: Mapping[str, Any], shape: Architecture) -> Iterator[str]:
    """Yield sizes that the config omits, with the assumed values."""
    if shape.family in mixers.OF_MAMBA and shape.blocks:
        return
    unknown = mixers.unknown_words(config, shape.hidden_size)
    if unknown:
        yield f"attention in the blocks called {', '.join(unknown)}, whose sizes are unknown"
    if _first(config, "heads") is None:
        yield f"{shape.heads} heads (num_attention_heads is missing)"
    if shape.gated_mlp and shape.intermediate_size is None and shape.expert_size is None:
        yield f"feed-forward width {shape.width_of_mlp} (intermediate_size is missing)"


def _is_gated(config: Mapping[str, Any]) -> bool:
    named = str(config.get("model_type"))
    family = _TEXT_FAMILIES.get(named, named)
    home = HOME_OF_FAMILY.get(family)
    if family == "nemotron_h":
        return False
    if home in _GATED_HOMES or family.startswith("gemma") or family in _GATED_FAMILIES:
        return True  # regardless of the activation
    activation = str(config.get("hidden_act", config.get("feed_forward_proj", "")))
    return "silu" in activation or "swiglu" in activation or "gated" in activation


def _counted(name: str, shape: Architecture) -> ModelTree | None:
    """Return the tree of a known family. Raises SizesUnknown if one of its tensors is empty."""
    tree = architectures.model_of(name, shape)
    if tree is None or tree.root is None:
        return None
    for tensor, fact in tree.root.named_parameters():
        if min(fact.shape, default=1) < 1:
            message = f"{name} has {tensor} of shape {fact.shape}; a size is missing or too small"
            raise SizesUnknown("model", f"{message}: fix it, or specify {named('params')}")
    return tree


def _estimated(name: str, shape: Architecture, config: Mapping[str, Any]) -> ModelTree:
    """Return the counts of an unknown family, taken from a related one with the same sizes."""
    # Rotary positions have no table of their own.
    is_rotary = _first(config, "kv_heads") or any(key.startswith("rope") for key in config)
    relative = "llama" if shape.gated_mlp or is_rotary else "gpt2"
    if shape.extras.get("kv_lora_rank"):
        relative = "deepseek_v3"
    tree = _counted(name, replace(shape, family=relative))
    assert tree is not None  # the related families are known
    message = f"the layout of {shape.family or 'this family'} is unknown; counted like {relative}"
    if shape.family in _UNLIKE or not hf_attributes.is_listed(shape.family):
        message += f", so the parameter count may be far off: specify {named('params')}"
    return replace(tree, root=None, architecture=shape, assumed=(message,))
