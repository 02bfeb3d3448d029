"""Quantized base weights: what 4-bit and 8-bit linear layers store, keep and copy."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig.cost.choices import USUAL, Choice, usual_config
from dsconfig.cost.estimate import Option
from dsconfig.cost.estimator import estimate_option
from dsconfig.cost.limits import limits
from dsconfig.cost.timeline import DEQUANTIZED
from dsconfig.cost.tuning import tune
from dsconfig.cost.usual import table
from dsconfig.cost.weights import weights_of
from dsconfig.facts.base_weights import BaseWeights
from dsconfig.facts.inputs import FactError
from dsconfig.mesh import Degrees
from dsconfig.runtimes.effective import Tier

QLORA: dict[str, Any] = {"lora_rank": 16, "base_weights": "4bit"}
LLAMA: dict[str, Any] = {"model": "llama-2-7b", "gpus": 2, "device": "rtx-4090"}
IN_BLOCKS = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
"""Elements of the linear layers of Llama-2-7B's blocks."""
OUTSIDE = 2 * 32000 * 4096 + (2 * 32 + 1) * 4096
"""Elements of its embedding, head and norms."""


def estimated(choice: Choice, runtime: str = "deepspeed", **given: Any) -> Option:
    facts = dsconfig.gather(**{**LLAMA, "seq_len": 512, "micro_batch": 1, **given})
    return estimate_option(usual_config(facts, choice), facts, runtime=runtime)


def bytes_of(option: Option, name: str) -> int:
    return max((part.bytes for part in option.device.components if part.name == name), default=0)


@pytest.mark.parametrize("runtime", ["deepspeed", "dsengine"])
@pytest.mark.parametrize(("kind", "bytes_per_weight"), [("4bit", 0.5), ("8bit", 1.0)])
def test_only_linear_layers_of_blocks_are_quantized(
    kind: str, bytes_per_weight: float, runtime: str
) -> None:
    """transformers keeps embeddings, head and norms in 16 bits."""
    option = estimated(Choice(stage=1), runtime, lora_rank=16, base_weights=kind)
    name = "weights" if runtime == "deepspeed" else "unsharded weights"
    lora = 2 * 16 * 32 * (4 * (4096 + 4096) + 3 * (4096 + 11008)) // 2
    expected = IN_BLOCKS * bytes_per_weight + 2 * (OUTSIDE + lora)
    assert bytes_of(option, name) == pytest.approx(expected, rel=1e-4)


def test_scales_take_the_bits_of_the_qlora_paper() -> None:
    """arXiv:2305.14314, section 3: double quantization needs 0.127 bits per parameter."""
    elements = 4096 * 4096
    bits = 8 * BaseWeights.FOUR_BIT.constant_bytes(elements, 4096) / elements
    assert bits == pytest.approx(0.127, abs=0.0005)
    assert BaseWeights.EIGHT_BIT.constant_bytes(elements, 4096) == 4 * 4096


def test_zero_3_shards_packed_weights_and_not_their_scales() -> None:
    unsharded, sharded = (estimated(Choice(stage=stage), **QLORA) for stage in (2, 3))
    scales = bytes_of(unsharded, "quantization scales")
    assert scales == pytest.approx(0.127 / 8 * IN_BLOCKS, rel=0.01)
    assert bytes_of(sharded, "quantization scales") == scales
    assert bytes_of(sharded, "weights") == pytest.approx(
        bytes_of(unsharded, "weights") / 2, rel=0.01
    )


def test_quantization_happens_on_each_device_before_zero_3_shards() -> None:
    """transformers 5.23 does not use zero.Init for a quantized model (``get_init_context``)."""
    option = estimated(Choice(stage=3), **QLORA)
    assert bytes_of(option, "model as built") == bytes_of(
        estimated(Choice(stage=2), **QLORA), "weights"
    )
    assert option.host.peak_bytes < 2 * 10**9, "each tensor is quantized as soon as it is read"


@pytest.mark.parametrize("runtime", ["deepspeed", "dsengine"])
def test_backward_copies_one_weight_in_the_compute_dtype(runtime: str) -> None:
    """``MatMul4Bit.backward`` dequantizes the full weight."""
    lean = {"gradient_checkpointing": True, "use_liger_kernel": True}
    option = estimated(Choice(stage=2), runtime, training_args=lean, **QLORA)
    assert bytes_of(option, DEQUANTIZED.name) == 2 * 4096 * 11008


def test_8bit_layers_keep_their_inputs() -> None:
    """``MatMul8bitLt`` saves its input, ``MatMul4Bit`` does not."""
    four, eight = (
        estimated(Choice(stage=2), lora_rank=16, lora_targets="q_proj", base_weights=kind)
        for kind in ("4bit", "8bit")
    )
    assert bytes_of(eight, "activations") > 1.2 * bytes_of(four, "activations")


LLAMA_65B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 22016,
    "vocab_size": 32000,
}


def test_a_65b_model_fits_one_48_gb_gpu(tmp_path: Path) -> None:
    """The QLoRA paper (arXiv:2305.14314) trains LLaMA-65B on 48 GB, with a paged optimizer."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_65B))
    facts = dsconfig.gather(
        model=config,
        gpus=1,
        device="A6000",
        seq_len=512,
        micro_batch=1,
        training_args={"gradient_checkpointing": True},
        lora_rank=64,
        base_weights="4bit",
    )
    choice = Choice(stage=2, optimizer=Tier.HOST)
    option = estimate_option(usual_config(facts, choice), facts, runtime="deepspeed")
    assert option.fits[0].fits
    assert option.device.peak_bytes > 33 * 10**9


def test_8bit_is_not_searched_at_stage_3() -> None:
    """bitsandbytes-foundation/bitsandbytes#1451, huggingface/accelerate#3730."""
    facts = dsconfig.gather(**LLAMA, seq_len=512, lora_rank=16, base_weights="8bit")
    assert all(candidate.choice.stage < 3 for candidate in tune(facts, runtime="deepspeed"))
    assert len(table(facts, runtime="deepspeed").options) == sum(each.stage < 3 for each in USUAL)


def test_stage_3_gathers_packed_weights() -> None:
    offloaded = Choice(stage=3, optimizer=Tier.HOST, parameters=Tier.HOST)
    plain, packed = (
        estimated(offloaded, lora_rank=16, base_weights=kind) for kind in (None, "4bit")
    )
    assert packed.host.bytes < 0.4 * plain.host.bytes
    assert packed.step is not None and plain.step is not None
    assert packed.step.offload_seconds < 0.4 * plain.step.offload_seconds


def test_trained_weights_cannot_be_quantized() -> None:
    with pytest.raises(FactError, match="specify lora_rank= or trainable="):
        dsconfig.gather(**LLAMA, base_weights="4bit")
    with pytest.raises(FactError, match="'3bit' is not one of 4bit, 8bit"):
        dsconfig.gather(**LLAMA, lora_rank=8, base_weights="3bit")


def test_weights_of_a_counted_model_are_packed_too() -> None:
    facts = dsconfig.gather(params="7B", trainable="20M", base_weights="4bit")
    assert facts.model is not None
    plain = weights_of(facts.model)
    packed = weights_of(facts.model, Degrees(), (BaseWeights.FOUR_BIT, 2))
    assert packed.elements < 0.35 * plain.elements and packed.trained == plain.trained


def test_zero_3_with_qlora_needs_what_peft_measured() -> None:
    """36.6 GB per GPU for Llama-2-70B on two GPUs (PEFT documentation, accelerate/deepspeed.md).

    The peak is the quantized model on each device, before ZeRO-3 shards it.
    """
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 8192 * 8192},
    }
    facts = dsconfig.gather(
        model="llama-2-70b",
        gpus=2,
        seq_len=2048,
        training_args={"gradient_checkpointing": True},
        lora_rank=8,
        lora_dropout=0.1,
        base_weights="4bit",
    )
    resolved = dsconfig.resolve(config, facts, runtime="deepspeed")
    device = dsconfig.estimate(resolved, facts).options[0].device
    assert device.peak_phase == "init"
    assert device.visible_bytes == pytest.approx(36.6 * 2**30, rel=0.05)


def test_fit_answers_for_the_adapted_model_only() -> None:
    facts = dsconfig.gather(model="gpt2", gpus=1, device="rtx-4090", seq_len=512, **QLORA)
    answers = {limit.question: limit.value for limit in limits(facts, runtime="deepspeed")}
    assert "largest model (parameters)" not in answers
    assert answers["fewest GPUs"] == 1
