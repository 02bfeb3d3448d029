"""Builds models under zero.Init in every way constructors are written; gathers and changes them."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from dsengine.utils import safe_get_full_fp32_param
from dsengine.zero import GatheredParameters, Init
from torch import Tensor, nn

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
from training.models import place


class Inventive(nn.Module):
    """Initialises in all the places and ways that real models do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.early = nn.Parameter(torch.randn(6))
        self.layers = nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)])
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("mean", torch.zeros(6))
        self.apply(self.initialise)
        nn.init.normal_(self.layers[0].weight, std=0.3)
        self.layers[1].weight.data.normal_(0, 0.1)
        self.layers[1].weight.data[0] = 7.0
        with torch.no_grad():
            self.layers[2].weight[1:3].mul_(3.0)
            self.layers[2].bias.copy_(self.layers[0].bias + self.early)
            self.mean.copy_(self.table.weight.mean(0))
            self.early /= self.early.norm()
        self.layers[2].weight.data = self.layers[2].weight.data.t().contiguous()
        assert self.table.weight.shape == (11, 6)
        assert self.table.weight.numel() == 66
        assert len(self.table.weight) == 11

    def initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.uniform_(module.bias)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def built(kind: type[nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    with Init():
        return kind()


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    with GatheredParameters(model.parameters()):
        return {name: t.clone() for name, t in model.state_dict().items()}


def equal_construction(said: dict[str, Any]) -> None:
    for kind in (Inventive, ToyModel, nn.TransformerEncoderLayer):
        arguments = (4, 2, 8) if kind is nn.TransformerEncoderLayer else ()
        torch.manual_seed(5)
        expected = kind(*arguments)
        torch.manual_seed(5 + dist.get_rank())  # rank 0's weights count, as without Init
        with Init():
            model = kind(*arguments)
        said[f"partitioned {kind.__name__}"] = is_partitioned(model)
        said[f"equal {kind.__name__}"] = same(whole_state(model), expected.state_dict())
    said["piece is a share"] = model.linear1.weight._shard.shape[0] == 4
    said["buffers whole"] = not any(b.numel() == 0 for b in built(Inventive, 5).buffers())


def gathering(said: dict[str, Any]) -> None:
    model = built(Inventive, 5)
    weight = model.layers[0].weight
    with GatheredParameters(weight, modifier_rank=1):
        said["ordinary inside"] = type(weight) is nn.Parameter and weight.shape == (6, 6)
        with torch.no_grad():
            weight.fill_(float(dist.get_rank() + 1))
    said["divided again"] = isinstance(weight, PartitionedParameter)
    said["modifier's values"] = bool((whole_state(model)["layers.0.weight"] == 2).all())
    with GatheredParameters([weight]), torch.no_grad():
        weight.zero_()
    said["changes discarded"] = bool((whole_state(model)["layers.0.weight"] == 2).all())
    before = whole_state(model)
    said["deep copy"] = same(whole_state(copy.deepcopy(model)), before)
    model.load_state_dict({n: t + 1 for n, t in before.items()})
    said["state dict loaded"] = same(whole_state(model), {n: t + 1 for n, t in before.items()})
    try:
        model.layers(torch.zeros(1, 6))
        said["called"] = "ran"
    except RuntimeError as error:
        said["called"] = str(error)
    gather_all(model)
    said["restored"] = same(model.state_dict(), {n: t + 1 for n, t in before.items()})


def handover(said: dict[str, Any]) -> None:
    """As the engine does: shard without storage, then take the pieces."""
    torch.manual_seed(5)
    expected = ToyModel()
    model = built(ToyModel, 5)
    held = model.blocks[0].up.weight
    originals = {p: n for n, p in model.named_parameters()}
    names = replace_partitioned(model)
    shard(model, 3)
    attach_shards(model, names, torch.device(place()))
    masters = dict(model.named_parameters())
    register_model(model, originals, masters)
    whole = {n: p.detach().full_tensor() for n, p in masters.items()}
    said["handed over"] = all(torch.equal(whole[n], p) for n, p in expected.named_parameters())
    tokens = torch.arange(8).view(1, 8)
    said["trains"] = bool(torch.allclose(model(tokens), expected(tokens)))
    shard_held = model.blocks[0].down.weight
    with GatheredParameters([shard_held, held], modifier_rank=0):
        inside = shard_held.data.clone()
        said["shard whole inside"] = inside.shape == (12, 36) and type(inside) is Tensor
        said["old object whole"] = bool(torch.equal(held.data, whole["blocks.0.up.weight"]))
        if dist.get_rank() == 0:
            nn.init.constant_(shard_held, 3.0)
            with torch.no_grad():
                held.mul_(2.0)
    changed = {n: p.detach().full_tensor() for n, p in model.named_parameters()}
    said["shard changed"] = bool((changed["blocks.0.down.weight"] == 3).all())
    said["old object changed"] = bool(
        torch.equal(changed["blocks.0.up.weight"], 2 * whole["blocks.0.up.weight"])
    )
    unit = model.blocks[1]
    unit.unshard()
    with GatheredParameters(unit.up.weight, modifier_rank=0), torch.no_grad():
        unit.up.weight.fill_(dist.get_rank() + 4.0)
    unit.reshard()
    said["whole at rest changed"] = bool((unit.up.weight.detach().full_tensor() == 4).all())


def under_16_bits(said: dict[str, Any]) -> None:
    """A model shows bf16; what it was built with and what was loaded is there for masters."""
    settings = {"train_batch_size": dist.get_world_size(), "bf16": {"enabled": True}}
    settings |= {"zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW", "params": {}}}
    torch.manual_seed(5)
    expected = Inventive()
    torch.manual_seed(5)
    with Init(config_dict_or_path=settings):
        model = Inventive()
    dtypes = {p.dtype for p in model.parameters() if p.dim()}
    said["of 16 bits"] = dtypes == {torch.bfloat16} == {p.data.dtype for p in [model.early]}
    restored = copy.deepcopy(model)
    gather_all(restored)
    said["built unrounded"] = same(restored.state_dict(), expected.state_dict())
    given = {n: t + 1 for n, t in expected.state_dict().items()}
    rounded = {n: t.bfloat16().float() for n, t in given.items()}
    with GatheredParameters(model.parameters(), modifier_rank=0):
        if dist.get_rank() == 0:
            model.load_state_dict(given)
            model.early.data[0] = 0.1
            model.layers[0].bias.view(2, 3)[1].data.mul_(2.0)
        copied = copy.deepcopy(model.early)
    said["a copy is ordinary"] = copied.data.dtype is torch.bfloat16 is copied.dtype
    said["gathered is rounded"] = all(
        torch.equal(t.float(), rounded[n])
        for n, t in whole_state(model).items()
        if n not in ("early", "layers.0.bias", "scalar", "mean")
    )
    before = whole_state(model)["table.weight"]
    with torch.no_grad():
        model.table.weight[2] = 3.0  # the rest of it stays as exact as it was
    engine: Any = dsengine.initialize(model=model, config=settings)[0]
    masters = {n: safe_get_full_fp32_param(p) for n, p in engine.module.named_parameters()}
    exact = given | {"table.weight": given["table.weight"].index_fill(0, torch.tensor([2]), 3.0)}
    exact["early"][0] = torch.tensor(0.1).bfloat16()
    exact["layers.0.bias"][3:] = rounded["layers.0.bias"][3:] * 2
    said["masters unrounded"] = all(torch.equal(masters[n], exact[n]) for n in masters)
    said["still of 16 bits"] = before.dtype is engine.module.table.weight.dtype is torch.bfloat16
    cast = built(Inventive, 5).half()
    said["cast"] = {p.dtype for p in cast.parameters()} == {torch.float16}


def outcomes() -> dict[str, Any]:
    """Whether each of these holds on this rank."""
    said: dict[str, Any] = {}
    equal_construction(said)
    gathering(said)
    handover(said)
    under_16_bits(said)
    return said
