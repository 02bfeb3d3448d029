"""DeepSpeed's faults under sequence and tensor parallelism. Runs on every rank."""

import importlib
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from training.live_jobs import real_deepspeed

VOCABULARY, LENGTH, RANKS = 128, 32, 2
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
MORE: dict[str, dict[str, Any]] = {
    "llama": {},
    "packed": {"model_type": "llama"},
    "mistral": {"sliding_window": 8},
    "qwen3_next": {
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 0,
        "initializer_range": 0.2,
    },
    "mixtral": {"num_local_experts": 4},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "three_heads": {"model_type": "llama", "hidden_size": 48, "num_attention_heads": 3}
    | {"num_key_value_heads": 3},
}


def _model(kind: str) -> Any:
    from transformers import AutoConfig

    options = {"model_type": kind} | SMALL | MORE[kind]
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    torch.manual_seed(5)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")


def _samples(count: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (count, LENGTH), generator=torch.Generator().manual_seed(3))


def _divide(model: Any) -> Any:
    """Register Ulysses for a model and return its mpu."""
    real_deepspeed().init_distributed("gloo")
    ulysses: Any = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
    return ulysses.UlyssesSPAttentionHF.register_with_transformers(
        model, core_attn_implementation="sdpa", sequence_parallel_size=RANKS, micro_batch_size=1
    )


def _part(whole: torch.Tensor) -> torch.Tensor:
    return whole.chunk(RANKS, dim=1)[dist.get_rank()].contiguous()


def norm_ratio(stage: int) -> float:
    """Return the gradient norm with two ranks per sample, divided by that of one process."""
    ids = _samples(1)
    labels = F.pad(ids, (0, 1), value=-100)[:, 1:]
    alone = _model("llama")
    alone(input_ids=ids, labels=ids).loss.backward()
    expected = torch.nn.utils.get_total_norm([each.grad for each in alone.parameters()])
    model = _model("llama")
    mpu = _divide(model)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1e9,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "sequence_parallel_size": RANKS,
    }
    engine, *_ = real_deepspeed().initialize(model=model, config=config, mpu=mpu)
    positions = _part(torch.arange(LENGTH)[None])
    logits = engine(input_ids=_part(ids), position_ids=positions, use_cache=False).logits
    losses = F.cross_entropy(
        logits.flatten(0, 1), _part(labels).flatten(), ignore_index=-100, reduction="sum"
    )
    engine.backward(losses * RANKS / (LENGTH - 1))
    engine.step()
    return float(engine.get_global_grad_norm()) / expected.item()


def largest_token_error(kind: str) -> float:
    """Return the largest difference of the loss of a token from that of one process."""
    ids, positions = _samples(1), torch.arange(LENGTH)[None]
    if kind == "packed":
        positions = torch.cat([torch.arange(12), torch.arange(LENGTH - 12)])[None]
    labels = F.pad(ids, (0, 1), value=-100)[:, 1:]

    def losses(model: Any, cut: Any) -> torch.Tensor:
        inputs = {"input_ids": cut(ids), "position_ids": cut(positions), "use_cache": False}
        logits = model(**inputs).logits
        return F.cross_entropy(logits[0], cut(labels)[0], ignore_index=-100, reduction="none")

    with torch.no_grad():
        expected = losses(_model(kind), lambda whole: whole)
        model = _model(kind)
        _divide(model)
        error = (losses(model, _part) - _part(expected[None])[0]).abs().max()
    dist.all_reduce(error, op=dist.ReduceOp.MAX)
    return error.item()


def error_of_ulysses(kind: str) -> str:
    """Return the error of dividing the heads of a model; empty if there is none."""
    try:
        _divide(_model(kind))
    except Exception as error:  # any is reported
        return f"{type(error).__name__}: {error}"
    return ""


def split_layers(kind: str, batch: dict[str, int]) -> dict[str, Any]:
    """Return the error of dividing the layers of a model; else the losses of a step on two ranks
    and in one process, and the samples per step by DeepSpeed's count and in fact."""
    deepspeed = real_deepspeed()
    deepspeed.init_distributed("gloo")
    config = {
        **batch,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "tensor_parallel": {"autotp_size": RANKS},
    }
    ids = _samples(2)
    try:
        engine, *_ = deepspeed.initialize(model=_model(kind), config=config)
    except Exception as error:  # any is reported
        return {"error": f"{type(error).__name__}: {error}"}
    expected = _model(kind)(input_ids=ids, labels=ids).loss.item()
    micro, steps = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    return {
        "losses": (engine(input_ids=ids, labels=ids, use_cache=False).loss.item(), expected),
        "counted": engine.train_batch_size(),
        "in fact": micro * steps * dist.get_world_size() // RANKS,
    }


class _WithEncoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.body = torch.nn.Linear(4, 8), torch.nn.Linear(8, 16)

    def forward(self, text: torch.Tensor, image: torch.Tensor | None) -> torch.Tensor:
        return self.body(text if image is None else text + self.encoder(image)).sum()


def encoder_at_stage_3(images: list[bool]) -> str:
    """Return the error of a step at stage 3 in which some ranks have an image; empty if there is
    none. Where NCCL waits, gloo fails, or ends the process: the gathered sizes differ."""
    deepspeed = real_deepspeed()
    deepspeed.init_distributed("gloo")
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    engine, *_ = deepspeed.initialize(
        model=_WithEncoder(), config={**config, "optimizer": optimizer}
    )
    image = torch.ones(1, 4) if images[dist.get_rank()] else None
    try:
        engine.backward(engine(torch.ones(1, 8), image))
        engine.step()
    except RuntimeError as error:
        return str(error)
    return ""
