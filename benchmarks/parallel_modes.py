"""Training modes for `benchmarks/parallel.py`.

Each builder returns a function that trains one step on this rank's part of a sample, or on the
sample with layers split over both ranks. AdamW, clipping, fp32; every rank has as many labels.
"""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

DIM, LAYERS, HEADS, VOCABULARY = 256, 4, 8, 4096
CLIP, LEARNING_RATE = 1.0, 1e-4
Step = Callable[[Tensor], None]
Build = Callable[[], Step]


def causal(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    """Attention of [batch, sequence, heads, head size]."""
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, core: Any) -> None:
        super().__init__()
        self.core = core
        self.norm1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, DIM // HEADS))
        x = x + self.proj(self.core(*heads.unbind(2)).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """``core``: attention of [batch, part of the sequence, heads, head size]."""

    def __init__(self, core: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block(core) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.5 / math.sqrt(DIM))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


class _Exchange(torch.autograd.Function):
    """Send slice i of dimension 0 to rank i."""

    @staticmethod
    def forward(ctx: Any, slices: Tensor) -> Tensor:  # pyright: ignore
        received = torch.empty_like(slices)
        dist.all_to_all_single(received, slices)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore
        gradient = gradient.contiguous()
        received = torch.empty_like(gradient)
        dist.all_to_all_single(received, gradient)
        return received


def ulysses(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Hand-written attention: all tokens of a part of the heads, and back."""
    ranks = dist.get_world_size()

    def of_heads(x: Tensor) -> Tensor:
        slices = x.unflatten(2, (ranks, -1)).permute(2, 0, 1, 3, 4).contiguous()
        return _Exchange.apply(slices).transpose(0, 1).flatten(1, 2)

    mixed = causal(of_heads(query), of_heads(key), of_heads(value))
    slices = mixed.unflatten(1, (ranks, -1)).transpose(0, 1).contiguous()
    return _Exchange.apply(slices).permute(1, 2, 0, 3, 4).flatten(2, 3)


def by_hand(stage: int) -> Build:
    """``fully_shard`` with the engine's units; below stage 3 parameters stay unsharded."""

    def build() -> Step:
        net, reshard = GPT(ulysses), stage == 3
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        units: list[Any] = [*net.blocks, net.tokens, [net.norm, net.head], net]
        for unit in units:
            fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
        optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, fused=True)

        def step(ids: Tensor) -> None:
            net(ids).backward()
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


class SplitBlock(nn.Module):
    """A block whose linear layers have one matrix each, so that every program can split them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(DIM, DIM) for _ in range(3))
        self.o_proj = nn.Linear(DIM, DIM)
        self.up_proj, self.down_proj = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm1(x)
        heads = (
            layer(normal).unflatten(-1, (-1, DIM // HEADS))
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        x = x + self.o_proj(causal(*heads).flatten(-2))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm2(x))))


def split_gpt() -> GPT:
    net = GPT(causal)
    torch.manual_seed(0)
    net.blocks = nn.ModuleList(SplitBlock() for _ in range(LAYERS))
    return net


COLUMNS, ROWS = ("q_proj", "k_proj", "v_proj", "up_proj"), ("o_proj", "down_proj")


def split_by_hand(stage: int) -> Build:
    """``parallelize_module`` over both ranks, then ``fully_shard`` over one."""

    def build() -> Step:
        net, reshard = split_gpt(), stage == 3
        sizes = (1, dist.get_world_size())
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("shard", "tensor"))
        styles: dict[str, Any] = {name: ColwiseParallel() for name in COLUMNS}
        styles |= {name: RowwiseParallel() for name in ROWS}
        for block in net.blocks:
            parallelize_module(block, mesh["tensor"], styles)
        units: list[Any] = [*net.blocks, net.tokens, [net.norm, net.head], net]
        for unit in units:
            fully_shard(unit, mesh=mesh["shard"], reshard_after_forward=reshard)
        split = [p for p in net.parameters() if p.device_mesh.ndim > 1]  # type: ignore[union-attr]
        whole = [p for p in net.parameters() if p.device_mesh.ndim == 1]  # type: ignore[union-attr]
        # Tensors of two meshes cannot be in one multi-tensor update.
        groups = [{"params": split}, {"params": whole}]
        optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, fused=True)

        def step(ids: Tensor) -> None:
            net(ids).backward()
            norms = [
                nn.utils.get_total_norm([p.grad for p in part if p.grad is not None])
                for part in (split, whole)
            ]
            total = torch.stack([norm.full_tensor() for norm in norms]).norm()  # type: ignore[operator]
            for part in (split, whole):
                nn.utils.clip_grads_with_norm_(part, CLIP, total)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def split_settings(stage: int) -> dict[str, Any]:
    rules = [
        {"patterns": [rf".*\.({'|'.join(COLUMNS)})\.weight"]},
        {"patterns": [rf".*\.({'|'.join(ROWS)})\.weight"], "partition_type": "row"},
    ]
    block = {"autotp_size": dist.get_world_size(), "partition_config": {"layer_specs": rules}}
    found = settings(stage) | {"tensor_parallel": block}
    del found["sequence_parallel_size"]
    return found


def split_by(program: str, stage: int) -> Build:
    """Return the builder of an engine that splits layers: dsengine or deepspeed."""

    def build() -> Step:
        if program == "dsengine":
            real: Any = import_module("dsengine")
        else:
            from training.live_jobs import real_deepspeed

            real = real_deepspeed()
            real.init_distributed("gloo")
        net = split_gpt()
        engine, *_ = real.initialize(
            model=net, model_parameters=net.parameters(), config=split_settings(stage)
        )
        return _engine_step(engine)

    return build


def settings(stage: int) -> dict[str, Any]:
    persistent = {"stage3_param_persistence_threshold": 0} if stage == 3 else {}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": CLIP,
        "sequence_parallel_size": dist.get_world_size(),
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "torch_adam": True}},
        "zero_optimization": {"stage": stage, **persistent},
    }


def _engine_step(engine: Any) -> Step:
    def step(ids: Tensor) -> None:
        engine.backward(engine(ids))
        engine.step()

    return step


def ours(stage: int) -> Build:
    def build() -> Step:
        from dsengine.runtime.sequence_parallel import parallel_state_sp

        import dsengine
        from dsengine.parallel.distributed_attention import DistributedAttention

        parallel_state_sp.initialize_sequence_parallel(dist.get_world_size())
        group = parallel_state_sp.get_sequence_parallel_group()
        net = GPT(DistributedAttention(causal, group, scatter_idx=2, gather_idx=1))
        engine, *_ = dsengine.initialize(model=net, config=settings(stage), mpu=parallel_state_sp)
        return _engine_step(engine)

    return build


def deepspeed(stage: int) -> Build:
    def build() -> Step:
        from training.live_jobs import real_deepspeed

        real = real_deepspeed()
        real.init_distributed("gloo")
        mpu: Any = import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")
        layer: Any = import_module("deepspeed.sequence.layer")
        mpu.initialize_sequence_parallel(dist.get_world_size())
        group = mpu.get_sequence_parallel_group()
        attention = layer.DistributedAttention(causal, group, scatter_idx=2, gather_idx=1)
        net = GPT(lambda query, key, value: attention(query, key, value, 0))
        engine, *_ = real.initialize(
            model=net, model_parameters=net.parameters(), config=settings(stage), mpu=mpu
        )
        return _engine_step(engine)

    return build


MODES: dict[str, Build] = {
    **{f"dsengine {stage}": ours(stage) for stage in (1, 2, 3)},
    **{f"torch {stage}": by_hand(stage) for stage in (1, 2, 3)},
    "deepspeed 3": deepspeed(3),
    **{f"dsengine split {stage}": split_by("dsengine", stage) for stage in (1, 2, 3)},
    **{f"torch split {stage}": split_by_hand(stage) for stage in (1, 2, 3)},
    **{f"deepspeed split {stage}": split_by("deepspeed", stage) for stage in (1, 2, 3)},
}
