"""Jobs of the tests of sequence parallelism. Each function runs on every rank."""

import gc
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from dsengine.runtime.sequence_parallel import parallel_state_sp
from torch import Tensor, nn

import dsengine
from dsconfig import tiles
from dsengine.deepspeed.parallel import UlyssesSPAttentionHF
from dsengine.optimizers.build import OWN
from dsengine.parallel import attention, masks
from dsengine.parallel.distributed_attention import DistributedAttention
from dsengine.parallel.tiling import TiledFusedLogitsLoss, TiledMLP
from dsengine.torch_private.tensors import replaced

VOCABULARY, LENGTH, MICRO_BATCH, IGNORED = 96, 16, 2, -100
OPTIMIZERS = {
    "SGD": {"lr": 0.3},
    "AdamW": {"lr": 1e-3, "weight_decay": 0.01},
    "Lamb": {"lr": 0.3, "weight_decay": 0.1},
}
Curve = list[tuple[float, float]]
"""By step, mean loss and gradient norm."""


class Attention(nn.Module):
    def __init__(self, divided: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96, bias=False)
        self.out = nn.Linear(32, 32, bias=False)
        if divided:
            group = parallel_state_sp.get_sequence_parallel_group()
            self.core: Any = DistributedAttention(causal, group, scatter_idx=2, gather_idx=1)
        else:
            self.core = causal

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, 8)).unbind(2)
        return self.out(self.core(query, key, value).flatten(-2))


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of [batch, sequence, heads, head size]."""
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, divided: bool) -> None:
        super().__init__()
        self.norm, self.attention = nn.RMSNorm(32), Attention(divided)
        self.mlp = nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class TiledBlock(Block):
    """The same, with an MLP in tiles of tokens."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + TiledMLP.apply(nn.Module.__call__, self.mlp, x, shards=3)


class Own(nn.Module):
    """A language model whose attention is divided by ``DistributedAttention``."""

    def __init__(self, divided: bool, block: type[Block] = Block) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 32)
        self.positions = nn.Embedding(LENGTH, 32)
        self.blocks = nn.ModuleList(block(divided) for _ in range(2))
        self.head = nn.Linear(32, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor, position_ids: Tensor, **_: Any) -> Tensor:
        x = self.tokens(input_ids) + self.positions(position_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Tiled(Own):
    """A model that returns the sum of the losses of tokens, computed in tiles."""

    sums_losses = True

    def __init__(self, divided: bool) -> None:
        super().__init__(divided, TiledBlock)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, labels: Any = None, **_: Any
    ) -> Tensor:
        x = self.tokens(input_ids) + self.positions(position_ids)
        for block in self.blocks:
            x = block(x)
        return tiled_losses(self, x, labels)


def tiled_losses(model: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the losses of tokens, without all logits at a time."""

    def losses(model: Any, rows: Tensor, labels: Tensor) -> Tensor:
        logits = model.head(rows)
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")

    return TiledFusedLogitsLoss.apply(
        losses, model, hidden, labels, None, shards=4, output_reduction="sum"
    )


def transformer(kind: str) -> Any:
    """Return a tiny model of transformers."""
    import transformers as hf

    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1 if kind == "one key head" else 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "attn_implementation": "sdpa",
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "use_cache": False,  # with a cache, transformers does not separate packed samples
    }
    layers = ["sliding_attention", "full_attention"]
    match kind:
        case "window":
            return hf.MistralForCausalLM(hf.MistralConfig(sliding_window=5, **shape))
        case "gemma 3":
            config = hf.Gemma3TextConfig(sliding_window=5, layer_types=layers, **shape)
            return hf.Gemma3ForCausalLM(config)
        case "apertus":
            return hf.ApertusForCausalLM(hf.ApertusConfig(**shape))
        case "gemma 3n":
            config = hf.Gemma3nTextConfig(layer_types=layers, num_kv_shared_layers=0, **shape)
            return hf.Gemma3nForCausalLM(config)
        case "minicpm 3":
            latent = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8}
            heads = {"qk_rope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4}
            config = hf.MiniCPM3Config(**{**shape, **latent, **heads})
            return hf.MiniCPM3ForCausalLM(config)
        case "phi 3":
            return hf.Phi3ForCausalLM(hf.Phi3Config(**shape))
        case "qwen 3":
            return hf.Qwen3ForCausalLM(hf.Qwen3Config(**shape))
        case "mixtral":
            config = hf.MixtralConfig(num_local_experts=2, num_experts_per_tok=1, **shape)
            return hf.MixtralForCausalLM(config)
        case _:
            return hf.LlamaForCausalLM(hf.LlamaConfig(**shape))


def model_of(kind: str, divided: bool) -> nn.Module:
    torch.manual_seed(5)
    if kind in ("own", "tiled"):
        return Tiled(divided) if kind == "tiled" else Own(divided)
    return transformer(kind)


def sample_batch(kind: str, number: int) -> dict[str, Tensor]:
    """Return micro batch ``number``: inputs over the whole sequence and next-token labels."""
    generator = torch.Generator().manual_seed(100 + number)
    shape = (MICRO_BATCH, LENGTH)
    tokens = torch.randint(1, VOCABULARY, shape, generator=generator)
    positions = torch.arange(LENGTH).expand(shape).contiguous()
    batch = {"input_ids": tokens, "position_ids": positions}
    labels = F.pad(tokens, (0, 1), value=IGNORED)[:, 1:].contiguous()
    if kind == "packed":
        batch["position_ids"] = torch.cat([torch.arange(6), torch.arange(10)]).expand(shape)
        labels[:, 5] = IGNORED
    if kind in ("left padding", "right padding"):
        padded = slice(0, 5) if kind == "left padding" else slice(9, LENGTH)
        batch["attention_mask"] = torch.ones(shape, dtype=torch.long)
        batch["attention_mask"][0, padded] = 0
        batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        labels[0, padded] = IGNORED
        if kind == "right padding":
            labels[0, 8] = IGNORED
    if kind == "no labels on a rank":
        labels[:, : LENGTH // 2] = IGNORED
    return {**batch, "labels": labels}


def token_losses(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    """Return the sum of the losses of labelled tokens, and their number."""
    if getattr(model, "sums_losses", False):
        return model(**batch), int((batch["labels"] != IGNORED).sum())
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    outputs = model(**inputs)
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    labels = batch["labels"].flatten()
    total = F.cross_entropy(logits.flatten(0, 1), labels, ignore_index=IGNORED, reduction="sum")
    return total, int((labels != IGNORED).sum())


def settings(stage: int, accumulation: int, optimizer: str, clip: float) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
        "optimizer": {"type": optimizer, "params": OPTIMIZERS[optimizer]},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }


def one_process(
    kind: str,
    accumulation: int,
    optimizer: str,
    clip: float,
    steps: int,
    replicas: int,
    model: nn.Module | None = None,
) -> Curve:
    """Train a ``model``, default that of ``kind``, in one process without an engine."""
    model = model or model_of(kind, divided=False)
    make = OWN.get(optimizer) or getattr(torch.optim, optimizer)
    trained = make(model.parameters(), **OPTIMIZERS[optimizer])
    curve: Curve = []
    for step in range(steps):
        total = 0.0
        for number in range(accumulation * replicas):
            batch = sample_batch(kind, step * accumulation * replicas + number)
            losses, count = token_losses(model, batch)
            loss = losses / count / (accumulation * replicas)
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        trained.step()
        trained.zero_grad()
        curve.append((total, norm.item()))
    return curve


def divided_model(kind: str, ranks: int) -> tuple[nn.Module, Any]:
    """Return a model whose samples are divided over ``ranks``, and the ``mpu``."""
    if ranks == 1:
        return model_of(kind, divided=False), None
    if kind in ("own", "tiled"):
        parallel_state_sp.initialize_sequence_parallel(ranks)
        return model_of(kind, divided=True), parallel_state_sp
    model = model_of(kind, divided=True)
    mpu = UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", ranks, MICRO_BATCH)
    return model, mpu


def micro_batch_loss(model: Any, kind: str, micro: int, ranks: int) -> Tensor:
    """Return the loss of this rank's part of micro batch ``micro``."""
    number = micro * (dist.get_world_size() // ranks) + dist.get_rank() // ranks
    losses, count = token_losses(model, dict(parts(sample_batch(kind, number), ranks)))
    counts = torch.tensor(float(count))
    if ranks > 1:
        dist.all_reduce(counts, group=parallel_state_sp.get_sequence_parallel_group())
    # Gradients are averaged over data x sequence ranks: weight the loss by the token share.
    return losses * ranks / counts


def divided(
    kind: str,
    stage: int,
    accumulation: int,
    optimizer: str,
    clip: float,
    steps: int,
    ranks: int = 2,
) -> Curve:
    """Train with samples divided over ``ranks``."""
    config = settings(stage, accumulation, optimizer, clip)
    model, mpu = divided_model(kind, ranks)
    engine, *_ = dsengine.initialize(model=model, config=config, mpu=mpu)
    curve: Curve = []
    for step in range(steps):
        total = torch.zeros(())
        for micro in range(accumulation):
            loss = micro_batch_loss(engine, kind, step * accumulation + micro, ranks)
            engine.backward(loss)
            engine.step()
            total += loss.detach() / accumulation
        dist.all_reduce(total)
        curve.append((total.item() / dist.get_world_size(), engine.get_global_grad_norm() or 0.0))
    engine.destroy()
    return curve


def losses_with_long_masks(kind: str, longest_dense: int) -> tuple[list[float], int]:
    """Return losses in evaluation with dense masks up to this length, and the number of calls with
    masks in blocks."""
    model, mpu = divided_model(kind, 2)
    engine, *_ = dsengine.initialize(model=model, config=settings(3, 1, "SGD", 0.0), mpu=mpu)
    engine.eval()
    calls = list[int]()

    def counted(*arguments: Any, **options: Any) -> Tensor:
        calls.append(1)
        return masks.attend_in_blocks(*arguments, **options)

    with (
        replaced(tiles, "LONGEST_DENSE_MASK", longest_dense),
        replaced(attention, "attend_in_blocks", counted),
        torch.no_grad(),
    ):
        found = [micro_batch_loss(engine, kind, micro, 2).item() for micro in range(3)]
    engine.destroy()
    return found, len(calls)


def attention_functions() -> list[tuple[bool, bool]]:
    """Return whether transformers' attention and mask function are its own, at the points of
    ``test_attention_is_registered_while_an_engine_uses_it``."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    original, found = (FUNCTIONS["sdpa"], MASKS["sdpa"]), list[tuple[bool, bool]]()

    def record() -> None:
        now = FUNCTIONS["sdpa"], MASKS["sdpa"]
        found.append((now[0] is original[0], now[1] is original[1]))

    def build() -> Any:
        model, mpu = divided_model("causal", 2)
        return dsengine.initialize(model=model, config=settings(1, 1, "SGD", 0.0), mpu=mpu)[0]

    first, second = build(), build()
    record()
    first.destroy()
    record()
    second.destroy()
    record()
    config = settings(1, 1, "SGD", 0.0) | {"sequence_parallel_size": 2}
    third, *_ = dsengine.initialize(model=transformer("causal"), config=config)
    record()
    del third, _
    gc.collect()
    record()
    return found


def parts(batch: dict[str, Tensor], ranks: int) -> Iterator[tuple[str, Tensor]]:
    """Yield this rank's part of each tensor."""
    length, rank = LENGTH // ranks, dist.get_rank() % ranks
    for name, value in batch.items():
        yield name, value[:, rank * length : (rank + 1) * length].contiguous()


def reduced_bytes(dtype: str) -> int:
    """Return the bytes of gradients reduced in one step in bf16, with
    ``seq_parallel_communication_data_type`` set to ``dtype``."""
    model, mpu = divided_model("own", 2)
    config = settings(2, 1, "SGD", clip=0.0) | {
        "bf16": {"enabled": True},
        "seq_parallel_communication_data_type": dtype,
        "comms_logger": {"enabled": True, "prof_all": True},
    }
    engine, *_ = dsengine.initialize(model=model, config=config, mpu=mpu)
    counted = engine._reporter.communication.counts
    total = 0
    for _ in range(2):  # the first step also creates what later ones use
        counted.clear()
        engine.backward(micro_batch_loss(engine, "own", 0, 2))
        total = sum(size * times for (name, size), times in counted.items() if "reduce_s" in name)
        engine.step()
    engine.destroy()
    return total
