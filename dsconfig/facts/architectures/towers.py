"""Vision and audio towers of multimodal models, with their projectors, as in transformers 5.23.

``tests/facts/test_towers.py`` compares each with the real model.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dsconfig.facts.architectures.parts import (
    Part,
    embedding,
    group,
    layer_norm,
    linear,
    rms_norm,
)
from dsconfig.facts.model import TensorFact
from dsconfig.source.pointer import is_block, is_list

Sizes = Mapping[str, Any]


def tower_of(kind: str, config: Sizes, width: int) -> tuple[str, Part] | None:
    """Return the tower and projector of a model type with a language model of ``width``, and the
    block of the config that describes it; None if its layout is unknown."""
    key = "audio_config" if kind == "qwen2_audio" else "vision_config"
    build, block = _BUILDERS.get(kind), config.get(key)
    if build is None or not is_block(block):
        return None
    defaults = _DEFAULTS[kind]
    stated = {name: value for name, value in block.items() if value is not None}
    sizes = {**defaults, **stated}
    if not all(_is_like(sizes[name], default) for name, default in defaults.items()):
        return None
    part = build(sizes, config, width)
    return None if part is None else (key, part)


def _is_like(value: object, default: object) -> bool:
    """Return whether a value has the type of its default, and is a possible size."""
    return type(value) is type(default) and (type(value) is not int or 0 < value < 1_000_000)


_QWEN: dict[str, Any] = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
_QWEN_3 = {
    **_QWEN,
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
    "patch_size": 16,
}
_QWEN_3_DEEP = {**_QWEN_3, "deepstack_visual_indexes": [8, 16, 24]}
_CLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "image_size": 224,
    "patch_size": 32,
}
_SIGLIP = {**_CLIP, "patch_size": 16, "vision_use_head": True}
_IDEFICS = {**_CLIP, "hidden_size": 1152}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "qwen2_vl": {**_QWEN, "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "hidden_size": 3584},
    "qwen2_5_vl": {
        **_QWEN,
        "depth": 32,
        "hidden_size": 3584,
        "intermediate_size": 3420,
        "out_hidden_size": 3584,
    },
    "qwen3_5": _QWEN_3,
    "qwen3_5_moe": _QWEN_3,
    "qwen3_vl": _QWEN_3_DEEP,
    "qwen3_vl_moe": _QWEN_3_DEEP,
    "llava": _CLIP,
    "llava_next": {**_CLIP, "hidden_size": 1024},
    "llava_onevision": {
        **_SIGLIP,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 26,
        "image_size": 384,
        "patch_size": 14,
        "vision_use_head": False,
    },
    "idefics3": _IDEFICS,
    "smolvlm": _IDEFICS,
    "internvl": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24},
    "qwen2_audio": {
        "d_model": 1280,
        "encoder_ffn_dim": 5120,
        "encoder_layers": 32,
        "num_mel_bins": 128,
        "max_source_positions": 1500,
    },
    "gemma3": _SIGLIP,
    "paligemma": _SIGLIP,
    "mistral3": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "patch_size": 16,
    },
}
"""Sizes that a config.json may omit, from the classes of the vision configs."""


def _patches(name: str, width: int, *kernel: int, bias: bool) -> Part:
    """Return the convolution that makes one vector of each patch of an image."""
    weight = TensorFact("weight", (width, 3, *kernel))
    bias_part = (TensorFact("bias", (width,)),) if bias else ()
    return Part(name, "Conv3d" if len(kernel) == 3 else "Conv2d", (weight, *bias_part))


def _mlp(
    names: tuple[str, ...], width: int, inner: int, *, name: str = "mlp", bias: bool = True
) -> Part:
    """Return an MLP: all names but the last widen."""
    *up, down = names
    wide = (linear(each, width, inner, bias=bias) for each in up)
    return group(name, "MLP", *wide, linear(down, inner, width, bias=bias))


def _layers(name: str, count: int, *parts: Part) -> Part:
    """Return equal blocks, which are not those of the language model's stack."""
    blocks = (group(str(index), "VisionBlock", *parts) for index in range(count))
    return group(name, "ModuleList", *blocks)


def _qwen_attention(width: int) -> Part:
    qkv, out = linear("qkv", width, 3 * width, bias=True), linear("proj", width, width, bias=True)
    return group("attn", "VisionAttention", qkv, out)


def _qwen_patches(sizes: Sizes, width: int, *, bias: bool) -> Part:
    side = sizes["patch_size"]
    proj = _patches("proj", width, sizes["temporal_patch_size"], side, side, bias=bias)
    return group("patch_embed", "PatchEmbed", proj)


def _sequential_merger(norm: Part, merged: int, out: int) -> Part:
    hidden, last = linear("0", merged, merged, bias=True), linear("2", merged, out, bias=True)
    return group("merger", "PatchMerger", norm, group("mlp", "Sequential", hidden, last))


def _qwen2_vl(sizes: Sizes, config: Sizes, width: int) -> Part:
    own, merged = sizes["embed_dim"], sizes["embed_dim"] * sizes["spatial_merge_size"] ** 2
    block = (
        layer_norm("norm1", own),
        layer_norm("norm2", own),
        _qwen_attention(own),
        _mlp(("fc1", "fc2"), own, own * sizes["mlp_ratio"]),
    )
    return group(
        "model.visual",
        "VisionTransformer",
        _qwen_patches(sizes, own, bias=False),
        _layers("blocks", sizes["depth"], *block),
        _sequential_merger(layer_norm("ln_q", own), merged, sizes["hidden_size"]),
    )


def _qwen2_5_vl(sizes: Sizes, config: Sizes, width: int) -> Part:
    own = sizes["hidden_size"]
    block = (
        rms_norm("norm1", own),
        rms_norm("norm2", own),
        _qwen_attention(own),
        _mlp(("gate_proj", "up_proj", "down_proj"), own, sizes["intermediate_size"]),
    )
    merged = own * sizes["spatial_merge_size"] ** 2
    return group(
        "model.visual",
        "VisionTransformer",
        _qwen_patches(sizes, own, bias=False),
        _layers("blocks", sizes["depth"], *block),
        _sequential_merger(rms_norm("ln_q", own), merged, sizes["out_hidden_size"]),
    )


def _qwen3_vl(sizes: Sizes, config: Sizes, width: int) -> Part:
    own, out = sizes["hidden_size"], sizes["out_hidden_size"]
    merged = own * sizes["spatial_merge_size"] ** 2
    block = (
        layer_norm("norm1", own),
        layer_norm("norm2", own),
        _qwen_attention(own),
        _mlp(("linear_fc1", "linear_fc2"), own, sizes["intermediate_size"]),
    )

    def merger(name: str, normalized: int) -> Part:
        first = linear("linear_fc1", merged, merged, bias=True)
        last = linear("linear_fc2", merged, out, bias=True)
        return group(name, "PatchMerger", layer_norm("norm", normalized), first, last)

    deep = range(len(sizes.get("deepstack_visual_indexes") or ()))
    mergers = (merger(str(index), merged) for index in deep)
    return group(
        "model.visual",
        "VisionModel",
        _qwen_patches(sizes, own, bias=True),
        embedding("pos_embed", sizes["num_position_embeddings"], own),
        _layers("blocks", sizes["depth"], *block),
        merger("merger", own),
        group("deepstack_merger_list", "ModuleList", *mergers) if deep else None,
    )


def _clip_layers(sizes: Sizes) -> Part:
    own = sizes["hidden_size"]
    names = ("k_proj", "v_proj", "q_proj", "out_proj")
    attention = (linear(name, own, own, bias=True) for name in names)
    layers = _layers(
        "layers",
        sizes["num_hidden_layers"],
        group("self_attn", "Attention", *attention),
        layer_norm("layer_norm1", own),
        _mlp(("fc1", "fc2"), own, sizes["intermediate_size"]),
        layer_norm("layer_norm2", own),
    )
    return group("encoder", "Encoder", layers)


def _clip(sizes: Sizes) -> Part:
    own, side = sizes["hidden_size"], sizes["patch_size"]
    positions = (sizes["image_size"] // side) ** 2 + 1
    embeddings = Part(
        "embeddings",
        "VisionEmbeddings",
        (TensorFact("class_embedding", (own,)),),
        (
            _patches("patch_embedding", own, side, side, bias=False),
            embedding("position_embedding", positions, own),
        ),
    )
    norms = layer_norm("pre_layrnorm", own), layer_norm("post_layernorm", own)
    parts = embeddings, norms[0], _clip_layers(sizes), norms[1]
    return group("vision_tower", "CLIPVisionModel", *parts)


def _siglip(sizes: Sizes, name: str = "vision_tower") -> Part:
    own, side = sizes["hidden_size"], sizes["patch_size"]
    embeddings = group(
        "embeddings",
        "VisionEmbeddings",
        _patches("patch_embedding", own, side, side, bias=True),
        embedding("position_embedding", (sizes["image_size"] // side) ** 2, own),
    )
    norm = layer_norm("post_layernorm", own)
    parts = embeddings, _clip_layers(sizes), norm, _siglip_head(sizes)
    return group(name, "SiglipVisionModel", *parts)


def _siglip_head(sizes: Sizes) -> Part | None:
    """Return the pooling head, which is built even if its output is unused."""
    own = sizes["hidden_size"]
    if not sizes.get("vision_use_head", False):
        return None
    packed = TensorFact("in_proj_weight", (3 * own, own)), TensorFact("in_proj_bias", (3 * own,))
    out = linear("out_proj", own, own, bias=True)
    attention = Part("attention", "MultiheadAttention", packed, (out,))
    mlp = _mlp(("fc1", "fc2"), own, sizes["intermediate_size"])
    probe = (TensorFact("probe", (1, 1, own)),)
    return Part("head", "PoolingHead", probe, (attention, layer_norm("layernorm", own), mlp))


def _projector(*parts: Part, parameters: tuple[TensorFact, ...] = ()) -> Part:
    return Part("multi_modal_projector", "MultiModalProjector", parameters, parts)


def _llava(sizes: Sizes, config: Sizes, width: int) -> Part | None:
    if sizes.get("model_type", "clip_vision_model") != "clip_vision_model":
        return None
    return group("model", "LlavaModel", _clip(sizes), _two_layers(sizes, config, width))


def _llava_next(sizes: Sizes, config: Sizes, width: int) -> Part | None:
    kind = sizes.get("model_type")
    towers = {"clip_vision_model": _clip, "siglip_vision_model": _siglip}
    default = "clip_vision_model" if config.get("model_type") == "llava_next" else None
    build = towers.get(str(kind or default or "siglip_vision_model"))
    if build is None:
        return None
    newline = (TensorFact("image_newline", (width,)),)
    return Part(
        "model", "LlavaNextModel", newline, (build(sizes), _two_layers(sizes, config, width))
    )


def _two_layers(sizes: Sizes, config: Sizes, width: int) -> Part:
    """Return LLaVA's projector, from the states of one or several layers of the tower."""
    taken: object = config.get("vision_feature_layer", -2)
    own = sizes["hidden_size"] * (len(taken) if is_list(taken) else 1)
    bias = config.get("multimodal_projector_bias", True) is not False
    first = linear("linear_1", own, width, bias=bias)
    return _projector(first, linear("linear_2", width, width, bias=bias))


def _idefics3(sizes: Sizes, config: Sizes, width: int) -> Part:
    merged = sizes["hidden_size"] * config.get("scale_factor", 2) ** 2
    projection = group("modality_projection", "SimpleMLP", linear("proj", merged, width))
    connector = group("connector", "Connector", projection)
    return group("model", "Idefics3Model", _siglip(sizes, "vision_model"), connector)


def _internvl(sizes: Sizes, config: Sizes, width: int) -> Part | None:
    own, side = sizes["hidden_size"], _side(sizes.get("patch_size", 14))
    image, shrinks = _side(sizes.get("image_size", 448)), config.get("downsample_ratio", 0.5)
    if not side or not image or type(shrinks) is not float or not 0 < shrinks <= 1:
        return None
    if sizes.get("use_mask_token") or sizes.get("use_absolute_position_embeddings") is False:
        return None
    is_rms = sizes.get("norm_type") == "rms_norm"
    norm, bias = rms_norm if is_rms else layer_norm, sizes.get("attention_bias") is True
    names = ("q_proj", "k_proj", "v_proj")
    normed = ("q_norm", "k_norm") if sizes.get("use_qk_norm") else ()
    attention = group(
        "attention",
        "Attention",
        *(linear(name, own, own, bias=bias) for name in names),
        linear("projection_layer", own, own, bias=True),
        *(rms_norm(name, own) for name in normed),
    )
    block = Part(
        "",
        "VisionBlock",
        (TensorFact("lambda_1", (own,)), TensorFact("lambda_2", (own,))),
        (
            attention,
            _mlp(("fc1", "fc2"), own, sizes["intermediate_size"]),
            norm("layernorm_before", own),
            norm("layernorm_after", own),
        ),
    )
    blocks = (replace(block, name=str(at)) for at in range(sizes["num_hidden_layers"]))
    positions = TensorFact("position_embeddings", (1, (image // side) ** 2 + 1, own))
    embeddings = Part(
        "embeddings",
        "VisionEmbeddings",
        (TensorFact("cls_token", (1, 1, own)), positions),
        (
            group(
                "patch_embeddings",
                "PatchEmbeddings",
                _patches("projection", own, side, side, bias=True),
            ),
        ),
    )
    pools = sizes.get("use_mean_pooling", True)
    encoder = group("encoder", "Encoder", group("layer", "ModuleList", *blocks))
    last = None if pools else layer_norm("layernorm", own)
    tower = group("vision_tower", "InternVLVisionModel", embeddings, encoder, last)
    merged = own * int(1 / shrinks) ** 2
    projector = _projector(
        layer_norm("layer_norm", merged),
        linear("linear_1", merged, width, bias=True),
        linear("linear_2", width, width, bias=True),
    )
    return group("model", "InternVLModel", tower, projector)


def _side(size: object) -> int:
    """Return the side of a square, which may be written twice; 0 for anything else."""
    if is_list(size) and len(size) == 2 and size[0] == size[1]:
        size = size[0]
    return size if type(size) is int and 0 < size < 1_000_000 else 0


def _qwen2_audio(sizes: Sizes, config: Sizes, width: int) -> Part:
    own, inner = sizes["d_model"], sizes["encoder_ffn_dim"]
    biased = {"k_proj": False, "v_proj": True, "q_proj": True, "out_proj": True}
    attention = (linear(name, own, own, bias=bias) for name, bias in biased.items())
    layers = _layers(
        "layers",
        sizes["encoder_layers"],
        group("self_attn", "Attention", *attention),
        layer_norm("self_attn_layer_norm", own),
        linear("fc1", own, inner, bias=True),
        linear("fc2", inner, own, bias=True),
        layer_norm("final_layer_norm", own),
    )
    tower = group(
        "audio_tower",
        "Qwen2AudioEncoder",
        _convolution("conv1", sizes["num_mel_bins"], own),
        _convolution("conv2", own, own),
        embedding("embed_positions", sizes["max_source_positions"], own),
        layers,
        layer_norm("layer_norm", own),
    )
    projector = _projector(linear("linear", own, width, bias=True))
    return group("model", "Qwen2AudioModel", tower, projector)


def _convolution(name: str, inputs: int, outputs: int) -> Part:
    weight, bias = TensorFact("weight", (outputs, inputs, 3)), TensorFact("bias", (outputs,))
    return Part(name, "Conv1d", (weight, bias))


def _gemma3(sizes: Sizes, config: Sizes, width: int) -> Part:
    own = sizes["hidden_size"]
    weight = TensorFact("mm_input_projection_weight", (own, width))
    projector = _projector(rms_norm("mm_soft_emb_norm", own), parameters=(weight,))
    return group("model", "Gemma3Model", _siglip(sizes), projector)


def _paligemma(sizes: Sizes, config: Sizes, width: int) -> Part:
    projected = sizes.get("projection_dim") or config.get("projection_dim") or width
    projector = _projector(linear("linear", sizes["hidden_size"], projected, bias=True))
    return group("model", "PaliGemmaModel", _siglip(sizes), projector)


def _mistral3(sizes: Sizes, config: Sizes, width: int) -> Part | None:
    if sizes.get("model_type", "pixtral") != "pixtral":
        return None
    own, side = sizes["hidden_size"], sizes["patch_size"]
    names = ("k_proj", "v_proj", "q_proj", "o_proj")
    gated = ("gate_proj", "up_proj", "down_proj")
    layers = _layers(
        "layers",
        sizes["num_hidden_layers"],
        rms_norm("attention_norm", own),
        _mlp(gated, own, sizes["intermediate_size"], name="feed_forward", bias=False),
        group("attention", "Attention", *(linear(name, own, own) for name in names)),
        rms_norm("ffn_norm", own),
    )
    tower = group(
        "vision_tower",
        "PixtralVisionModel",
        _patches("patch_conv", own, side, side, bias=False),
        rms_norm("ln_pre", own),
        group("transformer", "PixtralTransformer", layers),
    )
    bias = config.get("multimodal_projector_bias", False) is True
    merged = linear("merging_layer", own * config.get("spatial_merge_size", 2) ** 2, own)
    projector = _projector(
        rms_norm("norm", own),
        group("patch_merger", "PatchMerger", merged),
        linear("linear_1", own, width, bias=bias),
        linear("linear_2", width, width, bias=bias),
    )
    return group("model", "Mistral3Model", tower, projector)


_BUILDERS: Mapping[str, Callable[[Sizes, Sizes, int], Part | None]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _qwen3_vl),
    "llava": _llava,
    **dict.fromkeys(("llava_next", "llava_onevision"), _llava_next),
    **dict.fromkeys(("idefics3", "smolvlm"), _idefics3),
    "internvl": _internvl,
    "qwen2_audio": _qwen2_audio,
    "gemma3": _gemma3,
    "paligemma": _paligemma,
    "mistral3": _mistral3,
}
