"""Jobs for DeepSpeed's API on parameters and checkpoints."""

from typing import Any, cast

import torch
import torch.distributed as dist
from dsengine.runtime.zero.partition_parameters import ZeroParamStatus
from dsengine.utils import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_get_local_fp32_param,
    safe_get_local_grad,
    safe_get_local_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_grad,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_grad,
    safe_set_local_optimizer_state,
    safe_update_full_grad_vectorized,
)
from dsengine.utils.zero_to_fp32 import (
    get_fp32_state_dict_from_zero_checkpoint,
    load_state_dict_from_zero_checkpoint,
)
from torch import nn
from torch.distributed.tensor import DTensor

import dsengine as deepspeed
from narrowing import not_none, of_type
from training import models
from training.jobs import window


def ds_attributes(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the ds_* attributes before, inside and after a gather, and before the engine."""
    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = models.tied()
    weight: Any = model.head.weight
    built = (tuple(weight.ds_shape), weight.ds_numel, weight.ds_status)
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    sharded: list[Any] = [p for p in engine.module.parameters() if hasattr(p, "ds_id")]
    plain = [p for p in engine.module.parameters() if not hasattr(p, "ds_id")]
    before = {p.ds_status for p in sharded}
    with deepspeed.zero.GatheredParameters(sharded):
        inside = {p.ds_status for p in sharded}
        shapes = all(p.data.shape == p.ds_shape for p in sharded)
    result = {
        "built": built,
        "before": before == {ZeroParamStatus.NOT_AVAILABLE},
        "inside": inside == {ZeroParamStatus.AVAILABLE},
        "after": {p.ds_status for p in sharded} == {ZeroParamStatus.NOT_AVAILABLE},
        "shapes": shapes,
        "ids": len({p.ds_id for p in sharded}) == len(sharded),
        "sharded": len(sharded),
        "plain": len(plain),
        "no status": not any(hasattr(p, "ds_status") for p in plain),
    }
    engine.destroy()
    return result


def unwrapped(settings: dict[str, Any]) -> list[tuple[bool, bool]]:
    """Return (hooks registered, weights gathered) before, during and after generation."""
    engine, optimizer, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    result = cast(Any, optimizer).parameter_offload
    weight: Any = engine.module.get_parameter("head.weight")

    def state() -> tuple[bool, bool]:
        on = bool(result.forward_hooks) and bool(result.backward_hooks)
        return on, weight.ds_status is ZeroParamStatus.AVAILABLE

    seen = [state()]
    for hook in result.forward_hooks:
        hook.remove()
    with deepspeed.zero.unwrap_model_for_generation(engine):
        seen.append(state())
    seen.append(state())
    engine.destroy()
    return seen


def discarded_writes(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the errors for writes that GatheredParameters discards, and their effect."""

    def refused(
        parameter: torch.Tensor, rank: int, modifier: int | None = None, way: str = "add"
    ) -> str:
        try:
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=modifier):
                if dist.get_rank() == rank:
                    if way == "fail":
                        raise RuntimeError("of this rank alone")
                    elif way == "assign":
                        parameter.data = parameter.data + 1.0
                    elif way == "add":
                        with torch.no_grad():
                            parameter.add_(1.0)
        except RuntimeError as error:
            return str(error)
        return ""

    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = models.tied()
    result: dict[str, Any] = {"built": refused(model.head.weight, 0)}
    engine, *_ = deepspeed.initialize(model=model, config=settings)

    def weight(name: str) -> nn.Parameter:
        return engine.module.get_parameter(f"{name}.weight")

    before = of_type(weight("head"), DTensor).full_tensor()
    result |= {
        "sharded": refused(weight("head"), 1),
        "assigned": refused(weight("head"), 0, way="assign"),
        "failed": refused(weight("head"), 0, way="fail"),
        "plain": refused(weight("norm"), 0),
        "read": refused(weight("head"), -1),
        "kept": refused(weight("norm"), 1, modifier=1),
        "same": torch.equal(of_type(weight("head"), DTensor).full_tensor(), before),
        "persist": sorted({cast(Any, p).ds_persist for p in engine.module.parameters()}),
    }
    engine.destroy()
    return result


def unreduced(settings: dict[str, Any]) -> dict[str, Any]:
    """Check this rank's own gradients inside ``no_sync``, accumulated, and after ``zero_grad``."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    stage = engine.zero_optimization_stage()
    inside = engine.no_sync if stage < 2 else engine.coalesce_grad_reduction
    weight = dict(_trained(engine))["twice.weight"]
    with inside():
        engine.backward(engine(models.batch(0, 0, dist.get_rank())))
        once = not_none(safe_get_full_grad(weight)).float()
        engine.backward(engine(models.batch(0, 0, dist.get_rank())))
        twice = not_none(safe_get_full_grad(weight)).float()
        engine.zero_grad()
        engine.backward(engine(models.batch(0, 0, dist.get_rank())))
        again = not_none(safe_get_full_grad(weight)).float()
    others = [torch.empty_like(once) for _ in range(dist.get_world_size())]
    dist.all_gather(others, once.contiguous())
    result = {
        "summed": torch.allclose(twice, 2 * once, rtol=1e-2, atol=1e-6),
        "forgotten": torch.equal(again, once),
        "own": not torch.equal(others[0], others[1]),
    }
    if stage:
        engine.set_gradient_accumulation_boundary(True)
        mean = torch.stack(others).sum(0) / 2
        reduced = not_none(safe_get_full_grad(weight)) if stage > 1 else mean
        result["mean"] = torch.allclose(reduced, mean, rtol=2e-2, atol=1e-5)
    engine.destroy()
    return result


def full_states(settings: dict[str, Any]) -> dict[str, Any]:
    """Return master, gradient and moments of every trained parameter after a window and a half."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    window(engine, 0)
    gradients: list[dict[str, Any]] = []
    for micro in range(engine.gradient_accumulation_steps()):
        engine.backward(engine(models.batch(1, micro, dist.get_rank())))
        gradients.append({n: safe_get_full_grad(p) for n, p in _trained(engine)})
        engine.step()
    result = {
        "gradients": [
            {name: None if g is None else g.numpy() for name, g in micro.items()}
            for micro in gradients
        ],
        "masters": {n: _numpy(safe_get_full_fp32_param(p)) for n, p in _trained(engine)},
        "moments": {
            n: _numpy(safe_get_full_optimizer_state(p, "exp_avg_sq")) for n, p in _trained(engine)
        },
        "left": [safe_get_full_grad(p) for _, p in _trained(engine)],
        "stranger": safe_get_full_fp32_param(nn.Parameter(torch.zeros(1))),
    }
    engine.destroy()
    return result


class Experts(nn.Module):
    """A block with two experts; an input uses one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor, chosen: int) -> torch.Tensor:
        return x + self.experts[chosen](x).tanh()


class Routed(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Experts() for _ in range(layers))
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, chosen: int) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, chosen)
        return self.head(x).square().mean()


def routed(
    settings: dict[str, Any], layers: int = 2, marked: bool = True
) -> tuple[int, list[float]]:
    """Return the number of leaf modules, and the losses if ranks use different experts."""
    torch.manual_seed(0)
    model = Routed(layers)
    leaves = deepspeed.utils.set_z3_leaf_modules(model, [Experts]) if marked else []
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    curve, count = [], engine.gradient_accumulation_steps()
    for step in range(6):
        for micro in range(count):
            inputs = torch.ones(4, 8) * (1 + dist.get_rank() + micro)
            loss = engine(inputs, (dist.get_rank() + step + micro // 2) % 2)
            engine.backward(loss)
            engine.step()
            curve.append(loss.item())
    engine.destroy()
    return len(leaves), curve


def _trained(engine: Any) -> list[tuple[str, Any]]:
    """Return the parameters that forward uses."""
    named = engine.module.named_parameters()
    return [(n, p) for n, p in named if p.requires_grad and "unused" not in n]


def _numpy(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.numpy()


def full_weights(settings: dict[str, Any], folder: str) -> dict[str, bool]:
    """Whether a checkpoint read without an engine contains the trained weights."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    window(engine, 0)
    engine.save_checkpoint(folder)
    trained = {n: safe_get_full_fp32_param(p) for n, p in _trained(engine)}
    result = {}
    if dist.get_rank() == 0:  # on one rank only
        weights = get_fp32_state_dict_from_zero_checkpoint(folder)
        result["equal"] = all(torch.equal(weights[n], t) for n, t in trained.items())
        result["fp32"] = {t.dtype for t in weights.values()} == {torch.float32}
        result["tied"] = torch.equal(weights["head.weight"], weights["tokens.weight"])
        loaded = load_state_dict_from_zero_checkpoint(models.tied(seed=3), folder)
        result["loaded"] = torch.equal(loaded.head.weight, weights["tokens.weight"])
    dist.barrier()
    engine.destroy()
    return result


def optimizer_attributes(settings: dict[str, Any]) -> list[tuple[bool, float, float]]:
    """Return the optimizer's overflow and loss scale after each step."""
    engine, client, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    optimizer = cast(Any, client)
    rows = [(optimizer.overflow, optimizer.cur_scale, optimizer.loss_scale)]
    for step in range(3):
        loss = engine(models.batch(step, 0, dist.get_rank()))
        engine.backward(loss * (float("inf") if step == 1 else 1.0))
        engine.step()
        rows.append((optimizer.overflow, optimizer.cur_scale, optimizer.loss_scale))
    engine.destroy()
    return rows


def master_views(settings: dict[str, Any], name: str) -> tuple[set[str], int, int]:
    """Return dtypes and element count of the optimizer's master views, and of the model."""
    engine, optimizer, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    masters = list(getattr(optimizer, name))
    assert all(master.dim() == 1 for master in masters) and len(masters[:2]) == 2
    result = ({str(m.dtype) for m in masters}, sum(m.numel() for m in masters))
    engine.destroy()
    return *result, sum(p.numel() for p in models.tied().parameters() if p.requires_grad)


def optimizer_classes(settings: dict[str, Any]) -> list[str]:
    """Return the DeepSpeed classes that an optimizer from the config is an instance of."""
    from dsengine.ops import adam, lion
    from dsengine.runtime.base_optimizer import DeepSpeedOptimizer, ZeROOptimizer
    from dsengine.runtime.fp16.fused_optimizer import FP16_Optimizer
    from dsengine.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
    from dsengine.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from dsengine.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    engine, optimizer, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    kinds = (adam.FusedAdam, adam.DeepSpeedCPUAdam, lion.FusedLion, lion.DeepSpeedCPULion)
    wrappers = (
        DeepSpeedOptimizer,
        ZeROOptimizer,
        DeepSpeedZeroOptimizer,
        DeepSpeedZeroOptimizer_Stage3,
        FP16_Optimizer,
        FP16_UnfusedOptimizer,
    )
    result = [kind.__name__ for kind in (*kinds, *wrappers) if isinstance(optimizer, kind)]
    result += ["to be scaled"] if cast(Any, optimizer).needs_scaler() else []
    engine.destroy()
    return result


def client_losses(settings: dict[str, Any], name: str, steps: int = 4) -> list[float]:
    """Return the losses with an optimizer of ``ops``."""
    from dsengine.ops import adagrad, adam, lion

    kinds = {
        "FusedAdam": lambda p: adam.FusedAdam(p, lr=1e-2, weight_decay=0.1),
        "FusedAdam L2": lambda p: adam.FusedAdam(p, lr=1e-2, weight_decay=0.1, adam_w_mode=False),
        "DeepSpeedCPUAdam": lambda p: adam.DeepSpeedCPUAdam(p, lr=1e-2, weight_decay=0.1),
        "DeepSpeedCPUAdagrad": lambda p: adagrad.DeepSpeedCPUAdagrad(p, lr=1e-2),
        "FusedLion": lambda p: lion.FusedLion(p, lr=1e-3, weight_decay=0.1),
        "DeepSpeedCPULion": lambda p: lion.DeepSpeedCPULion(p, lr=1e-3, weight_decay=0.1),
    }
    model = models.tied()
    optimizer = kinds[name](model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    curve = [window(engine, step) for step in range(steps)]
    engine.destroy()
    return curve


def written(settings: dict[str, Any]) -> dict[str, Any]:
    """Check that written full and local states are read back."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    window(engine, 0)
    weight = engine.module.get_parameter("blocks.1.up.weight")
    shape = getattr(weight, "ds_shape", weight.shape)
    result: dict[str, Any] = {}
    value = torch.arange(shape.numel(), dtype=torch.float32).view(shape) / 100
    safe_set_full_fp32_param(weight, value)
    result["master"] = torch.equal(not_none(safe_get_full_fp32_param(weight)), value)
    with deepspeed.zero.GatheredParameters([weight]):
        result["parameter"] = torch.equal(weight.data.float(), value.to(weight.dtype).float())
    safe_set_full_optimizer_state(weight, value + 1, "exp_avg")
    state = not_none(safe_get_full_optimizer_state(weight, "exp_avg"))
    result["state"] = torch.equal(state, value + 1)
    engine.backward(engine(models.batch(1, 0, dist.get_rank())))
    safe_set_full_grad(weight, value + 2)
    result["gradient"] = torch.equal(not_none(safe_get_full_grad(weight)), value + 2)
    safe_update_full_grad_vectorized([weight], lambda gradient, _: gradient * 2)
    result["updated"] = torch.equal(not_none(safe_get_full_grad(weight)), (value + 2) * 2)
    own = not_none(safe_get_local_fp32_param(weight))
    safe_set_local_fp32_param(weight, own + 1)
    safe_set_local_grad(weight, torch.zeros_like(own))
    safe_set_local_optimizer_state(weight, own, "exp_avg")
    result["own"] = (
        torch.equal(not_none(safe_get_local_fp32_param(weight)), own + 1)
        and not not_none(safe_get_local_grad(weight)).any()
        and torch.equal(not_none(safe_get_local_optimizer_state(weight, "exp_avg")), own)
        and torch.equal(not_none(safe_get_full_fp32_param(weight)), value + 1)
    )
    frozen = engine.module.get_parameter("positions.weight")
    with deepspeed.zero.GatheredParameters([frozen]):
        expected = frozen.data.float().clone()
    result["frozen"] = torch.equal(not_none(safe_get_full_fp32_param(frozen)), expected)
    engine.step()
    result["trains on"] = bool(torch.isfinite(engine(models.batch(2, 0, dist.get_rank()))))
    engine.destroy()
    return result


class ReadsAttributes(nn.Module):
    """Reads its weights' attributes in forward, as frameworks do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(6, 6)
        self.seen: list[Any] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        weight: Any = self.head.weight
        self.seen.append((weight.ds_status, weight.ds_id))
        return self.head(inputs).square().mean()


def attributes_in_forward(settings: dict[str, Any]) -> dict[str, Any]:
    """Return weight attributes inside forward and losses."""
    torch.manual_seed(0)
    model = ReadsAttributes()
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    with engine.coalesce_grad_reduction():
        pass
    before = cast(Any, model.head.weight).ds_id
    engine.module.get_submodule("blocks.0")(torch.ones(2, 6))
    inputs = torch.ones(2, 6) * (dist.get_rank() + 1)
    losses = []
    for _ in range(2):
        loss = engine(inputs)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    output = {status for status, _ in model.seen} == {ZeroParamStatus.AVAILABLE}
    return {"status": output, "ids": {i for _, i in model.seen} == {before}, "losses": losses}


def global_samples_of_steps(settings: dict[str, Any]) -> list[int]:
    """Return global_samples after two steps, the second after three backwards."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    found = []
    for backwards in (1, 3):
        for micro in range(backwards):
            engine.backward(engine(models.batch(0, micro, dist.get_rank())))
        engine.step()
        found.append(engine.global_samples)
    engine.destroy()
    return found


def resolved_batch(config: dict[str, Any]) -> tuple[int, int]:
    """Return the micro batch and world size of a config object."""
    from dsengine.runtime.config import DeepSpeedConfig

    resolved = DeepSpeedConfig(config)
    return resolved.train_micro_batch_size_per_gpu, resolved.world_size
