"""Building models under zero.Init with all kinds of constructors, gathering and changing them."""

import copy
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from dsengine.utils import safe_get_full_fp32_param
from dsengine.zero import GatheredParameters, Init
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import dsengine
from dsengine.sharding.zero.adoption import (
    attach_shards,
    gather_all,
    is_partitioned,
    replace_partitioned,
)
from dsengine.sharding.zero.partitioned import PartitionedParameter
from dsengine.sharding.zero.registry import register_model
from engine_storage.jobs.toy import ToyModel, shard
from narrowing import of_type
from training.models import device_type


class VariedInit(nn.Module):
    """Initializes its parameters in all the ways that real models do."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.early = nn.Parameter(torch.randn(6))
        first, second, third = (nn.Linear(6, 6) for _ in range(3))
        self.layers = nn.Sequential(first, second, third)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("mean", torch.zeros(6))
        self.apply(self.initialize)
        nn.init.normal_(first.weight, std=0.3)
        second.weight.data.normal_(0, 0.1)
        second.weight.data[0] = 7.0
        with torch.no_grad():
            third.weight[1:3].mul_(3.0)
            third.bias.copy_(first.bias + self.early)
            self.mean.copy_(self.table.weight.mean(0))
            self.early /= self.early.norm()
        third.weight.data = third.weight.data.t().contiguous()
        assert self.table.weight.shape == (11, 6)
        assert self.table.weight.numel() == 66
        assert len(self.table.weight) == 11

    def initialize(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.uniform_(module.bias)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


M = TypeVar("M", bound=nn.Module)


def built(kind: type[M], seed: int) -> M:
    torch.manual_seed(seed)
    with Init():
        return kind()


def full_state(model: nn.Module) -> dict[str, Tensor]:
    with GatheredParameters(model.parameters()):
        return {name: t.clone() for name, t in model.state_dict().items()}


def equal_construction(result: dict[str, Any]) -> None:
    kinds: dict[type[nn.Module], tuple[int, ...]] = {
        VariedInit: (),
        ToyModel: (),
        nn.TransformerEncoderLayer: (4, 2, 8),
    }
    for kind, arguments in kinds.items():
        torch.manual_seed(5)
        expected = kind(*arguments)
        torch.manual_seed(5 + dist.get_rank())  # rank 0's weights are used, as without Init
        with Init():
            model = kind(*arguments)
        result[f"partitioned {kind.__name__}"] = is_partitioned(model)
        result[f"equal {kind.__name__}"] = same(full_state(model), expected.state_dict())
        if kind is nn.TransformerEncoderLayer:
            weight = of_type(model.get_parameter("linear1.weight"), PartitionedParameter)
            result["shard is one rank's share"] = weight._shard.shape[0] == 4
    result["buffers unsharded"] = not any(b.numel() == 0 for b in built(VariedInit, 5).buffers())


def gathering(result: dict[str, Any]) -> None:
    model = built(VariedInit, 5)
    weight = model.get_parameter("layers.0.weight")
    with GatheredParameters(weight, modifier_rank=1):
        result["ordinary inside"] = type(weight) is nn.Parameter and weight.shape == (6, 6)
        with torch.no_grad():
            weight.fill_(float(dist.get_rank() + 1))
    result["partitioned again"] = isinstance(weight, PartitionedParameter)
    result["modifier's values"] = bool((full_state(model)["layers.0.weight"] == 2).all())
    with GatheredParameters([weight]), torch.no_grad():
        weight.zero_()
    result["changes discarded"] = bool((full_state(model)["layers.0.weight"] == 2).all())
    before = full_state(model)
    result["deep copy"] = same(full_state(copy.deepcopy(model)), before)
    model.load_state_dict({n: t + 1 for n, t in before.items()})
    result["state dict loaded"] = same(full_state(model), {n: t + 1 for n, t in before.items()})
    try:
        model.layers(torch.zeros(1, 6))
        result["called"] = "ran"
    except RuntimeError as error:
        result["called"] = str(error)
    gather_all(model)
    result["restored"] = same(model.state_dict(), {n: t + 1 for n, t in before.items()})


def handover(result: dict[str, Any]) -> None:
    """Shard without storage, then attach the shards, as the engine does."""
    torch.manual_seed(5)
    expected = ToyModel()
    model = built(ToyModel, 5)
    original = model.get_parameter("blocks.0.up.weight")
    originals = {p: n for n, p in model.named_parameters()}
    names = replace_partitioned(model)
    shard(model, 3)
    attach_shards(model, names, torch.device(device_type()))
    masters = dict(model.named_parameters())
    register_model(model, originals, masters)
    full = {n: _full(p) for n, p in masters.items()}
    result["handed over"] = all(torch.equal(full[n], p) for n, p in expected.named_parameters())
    tokens = torch.arange(8).view(1, 8)
    result["trains"] = bool(torch.allclose(model(tokens), expected(tokens)))
    sharded = model.get_parameter("blocks.0.down.weight")
    with GatheredParameters([sharded, original], modifier_rank=0):
        inside = sharded.data.clone()
        result["shard unsharded inside"] = inside.shape == (12, 36) and type(inside) is Tensor
        result["old object unsharded"] = bool(
            torch.equal(original.data, full["blocks.0.up.weight"])
        )
        if dist.get_rank() == 0:
            nn.init.constant_(sharded, 3.0)
            with torch.no_grad():
                original.mul_(2.0)
    changed = {n: _full(p) for n, p in model.named_parameters()}
    result["shard changed"] = bool((changed["blocks.0.down.weight"] == 3).all())
    result["old object changed"] = bool(
        torch.equal(changed["blocks.0.up.weight"], 2 * full["blocks.0.up.weight"])
    )
    unit: Any = model.blocks[1]
    unit.unshard()
    with GatheredParameters(unit.up.weight, modifier_rank=0), torch.no_grad():
        unit.up.weight.fill_(dist.get_rank() + 4.0)
    unit.reshard()
    result["unsharded unit changed"] = bool((unit.up.weight.detach().full_tensor() == 4).all())


def _full(parameter: nn.Parameter) -> Tensor:
    return of_type(parameter.detach(), DTensor).full_tensor()


def under_16_bits(result: dict[str, Any]) -> None:
    """A model appears in bf16, but masters have the exact initial and loaded values."""
    settings = {"train_batch_size": dist.get_world_size(), "bf16": {"enabled": True}}
    settings |= {"zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW", "params": {}}}
    torch.manual_seed(5)
    expected = VariedInit()
    torch.manual_seed(5)
    with Init(config_dict_or_path=settings):
        model = VariedInit()
    dtypes = {p.dtype for p in model.parameters() if p.dim()}
    result["appears in 16 bits"] = (
        dtypes == {torch.bfloat16} == {p.data.dtype for p in [model.early]}
    )
    restored = copy.deepcopy(model)
    gather_all(restored)
    result["built unrounded"] = same(restored.state_dict(), expected.state_dict())
    loaded = {n: t + 1 for n, t in expected.state_dict().items()}
    rounded = {n: t.bfloat16().float() for n, t in loaded.items()}
    with GatheredParameters(model.parameters(), modifier_rank=0):
        if dist.get_rank() == 0:
            model.load_state_dict(loaded)
            model.early.data[0] = 0.1
            model.get_parameter("layers.0.bias").view(2, 3)[1].data.mul_(2.0)
        copied = copy.deepcopy(model.early)
    result["a copy is ordinary"] = copied.data.dtype is torch.bfloat16 is copied.dtype
    result["gathered is rounded"] = all(
        torch.equal(t.float(), rounded[n])
        for n, t in full_state(model).items()
        if n not in ("early", "layers.0.bias", "scalar", "mean")
    )
    before = full_state(model)["table.weight"]
    with torch.no_grad():
        model.table.weight[2] = 3.0  # its other values stay exact
    engine: Any = dsengine.initialize(model=model, config=settings)[0]
    masters = {n: safe_get_full_fp32_param(p) for n, p in engine.module.named_parameters()}
    exact = loaded | {"table.weight": loaded["table.weight"].index_fill(0, torch.tensor([2]), 3.0)}
    exact["early"][0] = torch.tensor(0.1).bfloat16()
    exact["layers.0.bias"][3:] = rounded["layers.0.bias"][3:] * 2
    result["masters unrounded"] = all(torch.equal(masters[n], exact[n]) for n in masters)
    result["still in 16 bits"] = before.dtype is engine.module.table.weight.dtype is torch.bfloat16
    cast = built(VariedInit, 5).half()
    result["cast"] = {p.dtype for p in cast.parameters()} == {torch.float16}


def outcomes() -> dict[str, Any]:
    """Return by name whether each property holds on this rank."""
    result: dict[str, Any] = {}
    equal_construction(result)
    gathering(result)
    handover(result)
    under_16_bits(result)
    return result
