"""Tiny models and tokenizers for ``from_pretrained``."""

import json
from pathlib import Path
from typing import Any

import torch

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:?'-"
SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


def save_model(folder: Path, kind: str = "LlamaForCausalLM", **sizes: Any) -> Path:
    """Save a model with deterministic weights that are exact in bf16 and fp16."""
    import transformers

    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    model = cls(cls.config_class(**(sizes or LLAMA)))
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().half().float()
    model.save_pretrained(folder)
    return folder


def save_tokenizer(
    folder: Path,
    kind: str = "PreTrainedTokenizerFast",
    prepend_scheme: str = "always",
    **options: Any,
) -> None:
    """Save a character-level tokenizer with about seventy tokens."""
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend_scheme}
    pieces = [*SPECIAL.values(), "▁", *LETTERS]
    scores = [[piece, -float(place)] for place, piece in enumerate(pieces)]
    described = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": space,
        "decoder": space,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": scores},
    }
    (folder / "tokenizer.json").write_text(json.dumps(described), "utf-8")
    settings = SPECIAL | {"tokenizer_class": kind} | options
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
