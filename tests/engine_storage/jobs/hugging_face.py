"""Training a transformers model with recomputed activations, exporting and loading it."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import dsengine

MODEL = LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=97,
    tie_word_embeddings=True,
)
CONFIG = {
    "train_batch_size": 4,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
}


def losses(**options: Any) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    engine = dsengine.initialize(model=LlamaForCausalLM(MODEL), config=CONFIG | options)[0]
    engine.train()
    tokens = torch.randint(97, (4, 8))[2 * dist.get_rank() :][:2]
    values = []
    for _ in range(3):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        values.append(loss.item())
    return values, engine


def exported(folder: str) -> dict[str, Any]:
    """Return what transformers and the engine load from the export."""
    result: dict[str, Any] = {}
    plain, _ = losses()
    recomputed, engine = losses(activation_checkpointing={"cpu_checkpointing": True})
    result["recomputed"] = recomputed == plain
    out = Path(folder) / "exported"
    engine.save_16bit_model(out, max_file_bytes=20_000)
    trained = engine._zero3_consolidated_16bit_state_dict()
    read, info = AutoModelForCausalLM.from_pretrained(
        out, output_loading_info=True, dtype=torch.bfloat16
    )
    result["complaints"] = [str(value) for value in info.values() if value]
    if trained is not None:
        result["same"] = all(torch.equal(trained[n], t) for n, t in read.state_dict().items())
    result["tied"] = read.lm_head.weight is read.model.embed_tokens.weight
    torch.manual_seed(7)
    other = dsengine.initialize(model=LlamaForCausalLM(MODEL), config=CONFIG)[0]
    other.load_pretrained(out)
    again = other._zero3_consolidated_16bit_state_dict()
    if trained is not None and again is not None:
        result["into shards"] = all(torch.equal(trained[n], t) for n, t in again.items())
    return result
