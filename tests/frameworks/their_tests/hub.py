"""Tiny replacements for hub models that the tests load, in a separate cache."""

import os
import sys
from pathlib import Path
from typing import Any

from frameworks.tiny import save_model, save_tokenizer

GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "vocab_size": 1000,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
T5 = {
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 8,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 1000,
    "decoder_start_token_id": 0,
}
MOBILEVIT = {
    "hidden_sizes": [8, 12, 16],
    "neck_hidden_sizes": [4, 4, 8, 8, 12, 16, 32],
    "num_attention_heads": 2,
    "image_size": 32,
}
QWEN2_MOE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "sshleifer/tiny-gpt2": ("GPT2LMHeadModel", GPT2),
    "hf-internal-testing/tiny-random-gpt2": ("GPT2LMHeadModel", GPT2),
    "hf-internal-testing/tiny-random-gptj": ("GPTJForCausalLM", GPT2 | {"rotary_dim": 4}),
    "apple/mobilevit-xx-small": ("MobileViTForImageClassification", MOBILEVIT),
    "peft-internal-testing/tiny-random-qwen-1.5-MoE": ("Qwen2MoeForCausalLM", QWEN2_MOE),
    "t5-small": ("T5ForConditionalGeneration", T5),
    "patrickvonplaten/t5-tiny-random": ("T5ForConditionalGeneration", T5),
}
"""Model class and sizes by hub name."""
REVISION = "0" * 40


def fill(cache: Path) -> None:
    """Write the models to ``cache`` in the layout of the hub's client, unless they exist."""
    for name, (kind, sizes) in MODELS.items():
        folder = cache / f"models--{name.replace('/', '--')}"
        if (folder / "refs" / "main").exists():
            continue
        snapshot = save_model(folder / "snapshots" / REVISION, kind, **sizes)
        if sizes is T5:
            save_tokenizer(snapshot, "T5Tokenizer", extra_ids=0)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(REVISION)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    fill(Path(sys.argv[1]))
