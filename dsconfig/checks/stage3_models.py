"""Rules for models that behave differently at ZeRO stage 3."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import EMBEDDED_IN_YAML, MODEL, TRAINING, rule
from dsconfig.checks.rule import Finding, reaches_deepspeed, reads_training_arguments
from dsconfig.facts.base_weights import BaseWeights
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.report.sizes import gib
from dsconfig.schema.paths import ZERO

with lazy_imports():
    from dsconfig.cost import weights

ENCODERS = ("vision_config", "audio_config", "thinker_config")
"""Blocks of a model's config.json that describe an encoder of images or sound."""


@rule("DSC477", Effect.NOTE, triggers=MODEL, applies_to=reaches_deepspeed)
def mixed_modalities_at_stage_3(config: Context) -> Iterator[Finding]:
    """Model with an image or sound encoder at ZeRO stage 3

    At stage 3 every rank takes part in gathering each weight. If the batch of one rank has an image
    and that of another only text, the ranks gather different weights and wait for each other
    forever. Every batch needs the same kinds of input; some trainers pass an empty image through
    the encoder. At stage 2 this also happens if the encoder is trained
    (modelscope/ms-swift#9104). The model's `config.json` is set by `--model`.

    with: model_config={"model_type": "llava", "text_config": {"model_type": "llama",
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32064}, "vision_config": {}}
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    """
    model = config.facts.named_model
    if config.stage != 3 or model is None or config.facts.world_size == 1:
        return
    if any(block in (model.config or {}) for block in ENCODERS):
        yield Finding(
            path=ZERO,
            message=f"{model.name} has an encoder of images or sound: at stage 3, ranks hang if "
            "only some of their batches use it (deepspeedai/DeepSpeed#7170)",
            help="give every batch the same kinds of input, or use stage 2 with a frozen encoder",
            on_key=True,
        )


QUANTIZES = {
    "load_in_4bit": (True,),
    "load_in_8bit": (True,),
    "quantization_bit": (4, 8),
    "quant_bits": (4, 8),
}
"""Keys of axolotl and TRL (two), LLaMA-Factory and ms-swift that quantize the base weights."""


@rule(
    "DSC504",
    Effect.NOTE,
    triggers=f"{MODEL} {TRAINING} {EMBEDDED_IN_YAML}",
    applies_to=reads_training_arguments,
)
def quantized_weights_loaded_unsharded(config: Context) -> Iterator[Finding]:
    """Quantized base weights are loaded unsharded at stage 3

    transformers does not use `zero.Init` for a model that bitsandbytes quantizes: every rank loads
    all its weights, and DeepSpeed shards them afterwards. Quantization is known from
    `--base-weights` or from the trainer's YAML.

    with: runtime="transformers", model="llama-2-70b", lora_rank=16, base_weights="4bit"
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    """
    facts, container = config.facts, config.document.container or {}
    written = any(container.get(key) in values for key, values in QUANTIZES.items())
    if config.stage != 3 or facts.world_size == 1 or not (facts.base_weights or written):
        return
    size = f" ({gib(_loaded_bytes(config), 1)})" if facts.base_weights and facts.model else ""
    yield Finding(
        path=ZERO,
        message=f"each rank loads all quantized weights{size} before DeepSpeed shards them "
        "(huggingface/transformers#30663, huggingface/peft#1844)",
        help="check that they fit on one GPU; stage 3 reduces memory only after loading",
        on_key=True,
    )


def _loaded_bytes(config: Context) -> int:
    """Return the bytes of all weights as loaded, in 16 bits where they are not quantized."""
    facts = config.facts
    if facts.base_weights is None or facts.model is None:
        return 0
    loaded = weights.weights_of(facts.model, packing=(BaseWeights(facts.base_weights), 2))
    return 2 * loaded.elements + loaded.constant_bytes
