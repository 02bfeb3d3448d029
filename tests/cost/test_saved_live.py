"""Bytes kept per layer by experts, latent attention and recent families, as in transformers.

Small models of each kind, on the CPU: what a layer more keeps for backward, by its storages.
Routing tables grow with the number of experts and not with the width: at these sizes they are
most of the tolerance.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from dsconfig.cost.activations import Style, block_bytes
from dsconfig.cost.loss import plain
from dsconfig.facts import hf_config
from dsconfig.facts.adapters import adapters_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.live

LENGTH, BATCH = 128, 2
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "num_experts_per_tok": 4,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"intermediate_size": 688, "num_key_value_heads": 8},
    "gpt_neox": {"intermediate_size": 1024, "num_key_value_heads": 8},
    "qwen3": {"intermediate_size": 688, "head_dim": 32},
    "gemma3_text": {"intermediate_size": 688, "head_dim": 32},
    "smollm3": {"intermediate_size": 688, "pad_token_id": 0},
    "mixtral": {"intermediate_size": 512, "num_local_experts": 8},
    "qwen3_moe": {
        "intermediate_size": 688,
        "moe_intermediate_size": 192,
        "num_experts": 16,
        "head_dim": 32,
    },
    "olmo2": {"intermediate_size": 688},
    "olmoe": {"intermediate_size": 192, "num_experts": 16},
    "gemma": {"intermediate_size": 688, "head_dim": 32},
    "exaone4": {"intermediate_size": 688},
    "starcoder2": {"intermediate_size": 1024},
    "arcee": {"intermediate_size": 1024},
    "granite": {"intermediate_size": 688},
    "gpt_oss": {"intermediate_size": 192, "num_local_experts": 16, "head_dim": 32},
    "glm4": {"intermediate_size": 688, "head_dim": 32, "pad_token_id": 0},
    "glm4_moe": {
        "intermediate_size": 688,
        "moe_intermediate_size": 192,
        "n_routed_experts": 16,
        "head_dim": 32,
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
    },
    "qwen2_moe": {
        "intermediate_size": 688,
        "moe_intermediate_size": 192,
        "shared_expert_intermediate_size": 384,
        "num_experts": 16,
    },
    "llama4_text": {
        "intermediate_size": 192,
        "intermediate_size_mlp": 688,
        "num_local_experts": 16,
        "head_dim": 32,
        "num_experts_per_tok": 1,
    },
    "gemma4_text": {
        "intermediate_size": 688,
        "head_dim": 32,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
    },
    "deepseek_v3": {
        "num_key_value_heads": 8,
        "intermediate_size": 688,
        "moe_intermediate_size": 192,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "q_lora_rank": 64,
        "kv_lora_rank": 48,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 32,
    },
}


def kept(model: Any) -> int:
    """Bytes of the storages that autograd saves in one forward, the model's own apart."""
    own = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    saved: dict[int, Any] = {}

    def save(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(0, model.config.vocab_size, (BATCH, LENGTH))
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in saved.values())


@pytest.fixture(name="build")
def _build() -> Callable[..., Any]:
    transformers = pytest.importorskip("transformers")

    def build(family: str, layers: int, dtype: Any, attention: str = "sdpa") -> Any:
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(
            family, **{**SIZES, **MODELS[family]}, num_hidden_layers=layers
        )
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention
        ).train()

    return build


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize(
    "family",
    [
        "mixtral",
        "qwen3_moe",
        "deepseek_v3",
        "gemma3_text",
        "smollm3",
        "olmo2",
        "olmoe",
        "gemma",
        "exaone4",
        "starcoder2",
        "arcee",
        "granite",
    ],
)
def test_a_layer_keeps_what_transformers_keeps(
    build: Callable[..., Any], family: str, width: int
) -> None:
    dtype = torch.bfloat16 if width == 2 else torch.float32
    fewer, more = build(family, 2, dtype), build(family, 4, dtype)
    measured = (kept(more) - kept(fewer)) / 2
    shape = hf_config.model(more.config.to_dict()).architecture
    assert shape is not None
    block = block_bytes(shape, Style(width=width))
    assert block.linear * BATCH * LENGTH * shape.hidden_size == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize(
    "family", ["gpt_oss", "glm4", "glm4_moe", "qwen2_moe", "llama4_text", "gemma4_text"]
)
def test_layers_of_other_families_are_within_five_percent(
    build: Callable[..., Any], family: str, width: int
) -> None:
    """Category of a head that is not rotated, and tables of routing, are not counted."""
    attention = "eager" if family == "gpt_oss" else "sdpa"
    dtype = torch.bfloat16 if width == 2 else torch.float32
    fewer, more = (build(family, layers, dtype, attention) for layers in (2, 4))
    measured = (kept(more) - kept(fewer)) / 2
    shape = hf_config.model(more.config.to_dict()).architecture
    assert shape is not None
    block = block_bytes(shape, Style(width=width, flash=attention != "eager"))
    scores = block.quadratic * shape.heads * LENGTH
    predicted = BATCH * LENGTH * (shape.hidden_size * block.linear + scores)
    assert predicted == pytest.approx(measured, rel=0.05)


DELTA: Mapping[str, Any] = {
    "head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
MAMBA_2 = {"mamba_n_heads": 16, "mamba_d_head": 32, "mamba_d_state": 64}
CONVOLVED = {"block_auto_adjust_ff_dim": False, "conv_L_cache": 3}
HYBRIDS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, str]]] = {
    "convolution": ("lfm2", CONVOLVED, {"layer_types": "conv"}),
    "attention of LFM2": ("lfm2", CONVOLVED, {"layer_types": "full_attention"}),
    "attention of Qwen3.5": ("qwen3_5_text", DELTA, {"layer_types": "full_attention"}),
    "lightning": ("minimax", {"num_local_experts": 2}, {"layer_types": "linear_attention"}),
    "attention of MiniMax": (
        "minimax",
        {"num_local_experts": 2},
        {"layer_types": "full_attention"},
    ),
    "RG-LRU": (
        "recurrent_gemma",
        {"num_key_value_heads": 8, "lru_width": 256},
        {"block_types": "recurrent"},
    ),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrid_layers_keep_what_their_kind_keeps(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Those that transformers runs by its own code on every device; 256 tokens fill the block of
    lightning attention."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setitem(globals(), "LENGTH", 256)
    family, more, order = HYBRIDS[name]

    def build(layers: int) -> Any:
        kinds = {key: [word] * layers for key, word in order.items()}
        sizes = {**SIZES, "intermediate_size": 512, "pad_token_id": 0, **more, **kinds}
        sizes["num_experts_per_tok"] = 2
        config = transformers.AutoConfig.for_model(family, **sizes, num_hidden_layers=layers)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()

    fewer, larger = build(2), build(4)
    measured = (kept(larger) - kept(fewer)) / 2
    shape = hf_config.model(larger.config.to_dict()).architecture
    assert shape is not None
    predicted = block_bytes(shape, Style()).linear * BATCH * LENGTH * shape.hidden_size
    assert predicted == pytest.approx(measured, rel=0.02)


class Adapter(torch.nn.Module):
    """A linear layer with PEFT's adapter, under PEFT's names."""

    def __init__(self, base: Any, rank: int, dropout: float) -> None:
        super().__init__()
        kind = base.weight.dtype
        self.base_layer = base
        drop = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()
        down = torch.nn.Linear(base.in_features, rank, bias=False, dtype=kind)
        up = torch.nn.Linear(rank, base.out_features, bias=False, dtype=kind)
        self.lora_dropout = torch.nn.ModuleDict({"default": drop})
        self.lora_A = torch.nn.ModuleDict({"default": down})
        self.lora_B = torch.nn.ModuleDict({"default": up})

    def forward(self, hidden: Any) -> Any:
        low = self.lora_A["default"](self.lora_dropout["default"](hidden))
        return self.base_layer(hidden) + self.lora_B["default"](low) * 2.0


def adapted(model: Any, targets: Sequence[str], dropout: float) -> Any:
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        owner, _, own = name.rpartition(".")
        if own in targets:
            setattr(model.get_submodule(owner), own, Adapter(module, 8, dropout))
    model.get_input_embeddings().register_forward_hook(lambda *given: given[2].requires_grad_())
    return model


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize(
    ("family", "targets", "dropout"),
    [
        ("llama", ("q_proj", "v_proj"), 0.0),
        ("llama", ("q_proj", "v_proj"), 0.1),
        ("llama", ("o_proj", "up_proj", "down_proj"), 0.0),
        ("gpt_neox", ("query_key_value",), 0.1),
        ("gpt_neox", ("dense", "dense_4h_to_h"), 0.0),
        ("qwen3", ("q_proj", "k_proj", "v_proj", "o_proj"), 0.0),
    ],
)
def test_layer_with_adapters_keeps_what_transformers_keeps(
    build: Callable[..., Any], family: str, targets: Sequence[str], dropout: float, width: int
) -> None:
    import dsengine

    dtype = torch.bfloat16 if width == 2 else torch.float32
    fewer, more = (adapted(build(family, layers, dtype), targets, dropout) for layers in (2, 4))
    measured = (kept(more) - kept(fewer)) / 2
    shape = hf_config.model(more.config.to_dict()).architecture
    assert shape is not None
    found = adapters_of(dsengine.describe(more))
    assert found is not None
    block = block_bytes(shape, Style(width=width, mask_width=width), found)
    assert block.linear * BATCH * LENGTH * shape.hidden_size == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("width", [2, 4])
def test_plain_loss_holds_what_transformers_holds(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Logits of a large vocabulary, against which the rest of the model is little."""
    from dsengine.observation.memory import LiveBytes

    vocabulary = 100_000
    monkeypatch.setitem(SIZES, "vocab_size", vocabulary)
    model = build("llama", 1, torch.bfloat16 if width == 2 else torch.float32)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids = torch.randint(0, vocabulary, (BATCH, LENGTH))
    live = LiveBytes(torch.device("cpu"), existing=False)
    live.start("forward")
    outputs = model(input_ids=ids, labels=ids, use_cache=False)
    live.enter("backward")
    outputs.loss.backward()
    live.stop()
    forward, backward = plain(BATCH * LENGTH * vocabulary, width)
    assert live.peaks["forward"] == pytest.approx(forward, rel=0.05)
    assert live.peaks["backward"] == pytest.approx(backward, rel=0.05)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_a_compiled_layer_keeps_what_the_partitioner_saves(
    build: Callable[..., Any], family: str
) -> None:
    """The backend runs the partitioner of torch.compile without its code generator."""

    def of(layers: int) -> int:
        torch._dynamo.reset()
        model = build(family, layers, torch.bfloat16)
        compiled = torch.compile(model, backend="aot_eager_decomp_partition")
        compiled.config = model.config
        return kept(compiled)

    grown = (of(4) - of(2)) / 2
    shape = hf_config.model(build(family, 2, torch.bfloat16).config.to_dict()).architecture
    assert shape is not None
    block = block_bytes(shape, Style(width=2, compiled=True))
    assert block.linear * LENGTH * BATCH * shape.hidden_size == pytest.approx(grown, rel=0.02)
