"""Tiny models with tokenizers, in folders as ``from_pretrained`` reads them."""

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
    """The same weights each time, all of which bf16 and fp16 hold exactly."""
    import transformers

    torch.manual_seed(0)
    of_kind = getattr(transformers, kind)
    model = of_kind(of_kind.config_class(**(sizes or LLAMA)))
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().half().float()
    model.save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path, kind: str = "PreTrainedTokenizerFast", **options: Any) -> None:
    """Words by their letters: enough for sentences to become some seventy numbers."""
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
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
