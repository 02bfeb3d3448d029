"""Training modes for `benchmarks/engine.py`.

Each builder returns a function that trains one step. Model, data and optimizer settings are the
same everywhere: AdamW, no clipping, fp32 unless stated otherwise.
"""

import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

warnings.filterwarnings("ignore", category=FutureWarning)

LEARNING_RATE = 1e-4
BUCKET_ELEMENTS = 5_000_000


@dataclass(frozen=True)
class Workload:
    """A GPT (33.7M parameters by default), its micro batch per rank and the device."""

    dim: int = 512
    layers: int = 8
    heads: int = 8
    vocabulary: int = 8192
    context: int = 128
    micro_batch: int = 2
    device: str = "cpu"
    compiled: bool = False
    """Whether the forward is compiled with torch.compile."""

    def model(self) -> "GPT":
        """Return the same weights on every rank, in host memory."""
        torch.manual_seed(0)
        built = GPT(self)
        for parameter in built.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.5 / math.sqrt(self.dim))
        return built

    def batch(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (self.micro_batch, self.context + 1)
        return torch.randint(self.vocabulary, shape, generator=generator).to(self.device)

    @property
    def tokens(self) -> int:
        """Tokens of one rank's micro batch."""
        return self.micro_batch * self.context

    @property
    def flops_per_token(self) -> float:
        """Forward and backward FLOPs: 6 per weight of a matrix product, plus causal attention."""
        weights = self.layers * 12 * self.dim**2 + self.vocabulary * self.dim
        return 6.0 * (weights + self.layers * self.context * self.dim)


Step = Callable[[Tensor], None]
Build = Callable[[Workload], tuple[Step, Callable[[], None]]]


class Block(nn.Module):
    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.heads = work.heads
        self.norm1 = nn.LayerNorm(work.dim)
        self.qkv = nn.Linear(work.dim, 3 * work.dim)
        self.proj = nn.Linear(work.dim, work.dim)
        self.norm2 = nn.LayerNorm(work.dim)
        self.up = nn.Linear(work.dim, 4 * work.dim)
        self.down = nn.Linear(4 * work.dim, work.dim)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, dim = x.shape
        heads = self.qkv(self.norm1(x)).view(samples, length, 3, self.heads, dim // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(samples, length, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.tokens = nn.Embedding(work.vocabulary, work.dim)
        self.positions = nn.Embedding(work.context, work.dim)
        self.blocks = nn.ModuleList(Block(work) for _ in range(work.layers))
        self.norm = nn.LayerNorm(work.dim)
        self.head = nn.Linear(work.dim, work.vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        inputs, targets = ids[:, :-1], ids[:, 1:]
        places = torch.arange(inputs.shape[1], device=ids.device)
        x = self.tokens(inputs) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.reshape(-1))


def _plain(
    net: nn.Module, optimizer: torch.optim.Optimizer, autocast: torch.autocast | None = None
) -> Step:
    def step(batch: Tensor) -> None:
        with autocast or nullcontext():
            loss = net(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp(fused: bool, precision: str = "fp32") -> Build:
    def build(work: Workload) -> tuple[Step, Callable[[], None]]:
        net = DistributedDataParallel(work.model().to(work.device))
        if work.compiled:
            net.compile()
        optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, fused=fused)
        narrow = torch.autocast(work.device, torch.bfloat16) if precision == "bf16" else None
        return _plain(net, optimizer, narrow), lambda: None

    return build


def sharded(reshard: bool, precision: str = "fp32", *, ends: bool = False) -> Build:
    """Plain ``fully_shard``: one unit per block and one for the rest.

    ``ends``: embeddings and head are units as well, as in the engine.
    """

    def build(work: Workload) -> tuple[Step, Callable[[], None]]:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        dtype = torch.bfloat16 if precision == "bf16" else None
        policy = MixedPrecisionPolicy(param_dtype=dtype)
        net = work.model().to(work.device)
        for block in net.blocks:
            if work.compiled:
                block.compile()
            fully_shard(block, reshard_after_forward=reshard, mp_policy=policy)
        for end in ([net.tokens, net.positions], [net.norm, net.head]) if ends else ():
            fully_shard(end, reshard_after_forward=reshard, mp_policy=policy)
        fully_shard(net, reshard_after_forward=reshard, mp_policy=policy)
        optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, fused=True)
        return _plain(net, optimizer), lambda: None

    return build


def config(
    stage: int, precision: str, micro_batch: int, *, offloads: bool = False
) -> dict[str, Any]:
    """``offloads``: offload the optimizer, which DeepSpeed steps with its own kernel."""
    below = {"offload_optimizer": {"device": "cpu"}} if offloads else {}
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "torch_adam": not offloads}},
        "bf16": {"enabled": precision == "bf16"},
        "zero_optimization": {
            "stage": stage,
            **below,
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


def ours(stage: int, precision: str = "fp32", *, offloads: bool = False) -> Build:
    def build(work: Workload) -> tuple[Step, Callable[[], None]]:
        import dsengine

        settings = config(stage, precision, work.micro_batch, offloads=offloads)
        engine, *_ = dsengine.initialize(model=work.model(), config=settings)
        if work.compiled:
            engine.compile()
        return _engine_step(engine), engine.destroy

    return build


def deepspeed(stage: int, precision: str = "fp32", *, offloads: bool = False) -> Build:
    def build(work: Workload) -> tuple[Step, Callable[[], None]]:
        import deepspeed as real  # type: ignore[import-untyped]

        net = work.model()
        settings = config(stage, precision, work.micro_batch, offloads=offloads)
        engine, *_ = real.initialize(model=net, model_parameters=net.parameters(), config=settings)
        if work.compiled:
            engine.compile()

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
    "same units kept": sharded(reshard=False, ends=True),
    "same units": sharded(reshard=True, ends=True),
    "ddp fused bf16": ddp(fused=True, precision="bf16"),
    "fully_shard bf16": sharded(reshard=True, precision="bf16"),
    **{f"dsengine {stage}": ours(stage) for stage in range(4)},
    **{f"deepspeed {stage}": deepspeed(stage) for stage in range(4)},
    **{f"dsengine {stage} bf16": ours(stage, "bf16") for stage in range(4)},
    **{f"deepspeed {stage} bf16": deepspeed(stage, "bf16") for stage in range(4)},
    "dsengine 2 offload": ours(2, offloads=True),
    "deepspeed 2 offload": deepspeed(2, offloads=True),
}
PLAIN_TORCH = {0: "ddp fused", 1: "same units kept", 2: "same units kept", 3: "same units"}
"""The plain torch mode that corresponds to each stage."""
FP32 = [name for name in MODES if not name.endswith(("bf16", "offload")) and "units" not in name]
