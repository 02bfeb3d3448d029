"""One way of training per mode: what `benchmarks/engine.py` puts side by side.

Each builder returns a function that trains one step. The model, the data and the optimizer's
settings are the same everywhere: AdamW, no clipping, fp32 unless said otherwise.
"""

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

warnings.filterwarnings("ignore", category=FutureWarning)

DIM, LAYERS, HEADS, VOCABULARY, CONTEXT, MICRO_BATCH = 512, 8, 8, 8192, 128, 2
LEARNING_RATE = 1e-4
BUCKET_ELEMENTS = 5_000_000

Step = Callable[[Tensor], None]
Build = Callable[[], tuple[Step, Callable[[], None]]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(samples, length, 3, HEADS, DIM // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(samples, length, DIM))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """33.7M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, DIM)
        self.positions = nn.Embedding(CONTEXT, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        inputs, targets = ids[:, :-1], ids[:, 1:]
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def model() -> GPT:
    torch.manual_seed(0)
    built = GPT()
    for parameter in built.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.5 / math.sqrt(DIM))
    return built


def _plain(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(batch: Tensor) -> None:
        net(batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp(fused: bool) -> Build:
    def build() -> tuple[Step, Callable[[], None]]:
        net = DistributedDataParallel(model())
        optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, fused=fused)
        return _plain(net, optimizer), lambda: None

    return build


def sharded(reshard: bool, precision: str = "fp32") -> Build:
    """``fully_shard`` by hand: one unit per block, one for what is left."""

    def build() -> tuple[Step, Callable[[], None]]:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        dtype = torch.bfloat16 if precision == "bf16" else None
        policy = MixedPrecisionPolicy(param_dtype=dtype)
        net = model()
        for block in net.blocks:
            fully_shard(block, reshard_after_forward=reshard, mp_policy=policy)
        fully_shard(net, reshard_after_forward=reshard, mp_policy=policy)
        optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, fused=True)
        return _plain(net, optimizer), lambda: None

    return build


def _config(stage: int, precision: str) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "torch_adam": True}},
        "bf16": {"enabled": precision == "bf16"},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
            "stage3_prefetch_bucket_size": BUCKET_ELEMENTS,
            "stage3_max_live_parameters": 2 * BUCKET_ELEMENTS,
            "stage3_max_reuse_distance": 0,
            "stage3_param_persistence_threshold": 0,
        },
    }


def _engine_step(engine: Any) -> Step:
    def step(batch: Tensor) -> None:
        engine.backward(engine(batch))
        engine.step()

    return step


def ours(stage: int, precision: str = "fp32") -> Build:
    def build() -> tuple[Step, Callable[[], None]]:
        import dsengine

        engine, *_ = dsengine.initialize(model=model(), config=_config(stage, precision))
        return _engine_step(engine), engine.destroy

    return build


def deepspeed(stage: int, precision: str = "fp32") -> Build:
    def build() -> tuple[Step, Callable[[], None]]:
        import deepspeed as real  # type: ignore[import-untyped]

        net = model()
        engine, *_ = real.initialize(
            model=net, model_parameters=net.parameters(), config=_config(stage, precision)
        )

        def destroy() -> None:
            with suppress(AttributeError):
                engine.destroy()

        return _engine_step(engine), destroy

    return build


MODES: dict[str, Build] = {
    "ddp": ddp(fused=False),
    "ddp fused": ddp(fused=True),
    "fully_shard kept": sharded(reshard=False),
    "fully_shard": sharded(reshard=True),
    **{f"dsengine {stage}": ours(stage) for stage in range(4)},
    **{f"deepspeed {stage}": deepspeed(stage) for stage in range(4)},
    **{f"dsengine {stage} bf16": ours(stage, "bf16") for stage in range(4)},
    **{f"deepspeed {stage} bf16": deepspeed(stage, "bf16") for stage in range(4)},
}
FP32 = [name for name in MODES if not name.endswith("bf16")]
