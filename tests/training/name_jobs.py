"""Jobs about what scripts ask of parameters and checkpoints by DeepSpeed's names."""

from typing import Any

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

import dsengine as deepspeed
from training import models
from training.jobs import window


def statuses(settings: dict[str, Any]) -> dict[str, Any]:
    """What parameters say before, inside and after a gather, and before the engine."""
    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = models.tied()
    weight = model.head.weight
    built = (tuple(weight.ds_shape), weight.ds_numel, weight.ds_status)
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    divided = [p for p in engine.module.parameters() if hasattr(p, "ds_id")]
    whole = [p for p in engine.module.parameters() if not hasattr(p, "ds_id")]
    before = {p.ds_status for p in divided}
    with deepspeed.zero.GatheredParameters(divided):
        inside = {p.ds_status for p in divided}
        shapes = all(p.data.shape == p.ds_shape for p in divided)
    told = {
        "built": built,
        "before": before == {ZeroParamStatus.NOT_AVAILABLE},
        "inside": inside == {ZeroParamStatus.AVAILABLE},
        "after": {p.ds_status for p in divided} == {ZeroParamStatus.NOT_AVAILABLE},
        "shapes": shapes,
        "ids": len({p.ds_id for p in divided}) == len(divided),
        "divided": len(divided),
        "whole": len(whole),
        "says nothing": not any(hasattr(p, "ds_status") for p in whole),
    }
    engine.destroy()
    return told


def unwrapped(settings: dict[str, Any]) -> list[tuple[bool, bool]]:
    """Before, while and after a model generates: whether hooks are on, and weights whole."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    told = engine.optimizer.parameter_offload
    weight = engine.module.head.weight

    def state() -> tuple[bool, bool]:
        on = bool(told.forward_hooks) and bool(told.backward_hooks)
        return on, weight.ds_status is ZeroParamStatus.AVAILABLE

    seen = [state()]
    for hook in told.forward_hooks:
        hook.remove()
    with deepspeed.zero.unwrap_model_for_generation(engine):
        seen.append(state())
    seen.append(state())
    engine.destroy()
    return seen


def writes_discarded(settings: dict[str, Any]) -> dict[str, Any]:
    """Whether writes are refused that GatheredParameters discards, and what is left of them."""

    def refused(
        parameter: nn.Parameter, rank: int, modifier: int | None = None, way: str = "add"
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
    told: dict[str, Any] = {"built": refused(model.head.weight, 0)}
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    before = engine.module.head.weight.full_tensor()
    told |= {
        "divided": refused(engine.module.head.weight, 1),
        "assigned": refused(engine.module.head.weight, 0, way="assign"),
        "failed": refused(engine.module.head.weight, 0, way="fail"),
        "whole": refused(engine.module.norm.weight, 0),
        "read": refused(engine.module.head.weight, -1),
        "kept": refused(engine.module.norm.weight, 1, modifier=1),
        "same": torch.equal(engine.module.head.weight.full_tensor(), before),
        "persist": sorted({p.ds_persist for p in engine.module.parameters()}),
    }
    engine.destroy()
    return told


def unreduced(settings: dict[str, Any]) -> dict[str, Any]:
    """This rank's own gradients inside ``no_sync``, once more, and after ``zero_grad``."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    stage = engine.zero_optimization_stage()
    inside = engine.no_sync if stage < 2 else engine.coalesce_grad_reduction
    weight = dict(_trained(engine))["twice.weight"]
    with inside():
        engine.backward(engine(models.batch(0, 0, dist.get_rank())))
        once = _known(safe_get_full_grad(weight)).float()
        engine.backward(engine(models.batch(0, 0, dist.get_rank())))
        twice = _known(safe_get_full_grad(weight)).float()
        engine.zero_grad()
        engine.backward(engine(models.batch(0, 0, dist.get_rank())))
        again = _known(safe_get_full_grad(weight)).float()
    others = [torch.empty_like(once) for _ in range(dist.get_world_size())]
    dist.all_gather(others, once.contiguous())
    told = {
        "summed": torch.allclose(twice, 2 * once, rtol=1e-2, atol=1e-6),
        "forgotten": torch.equal(again, once),
        "own": not torch.equal(others[0], others[1]),
    }
    if stage:
        engine.set_gradient_accumulation_boundary(True)
        reduced = _known(safe_get_full_grad(weight)) if stage > 1 else sum(others) / 2
        told["mean"] = torch.allclose(reduced, sum(others) / 2, rtol=2e-2, atol=1e-5)
    engine.destroy()
    return told


def whole_states(settings: dict[str, Any]) -> dict[str, Any]:
    """Master, gradient and moments of every trainable parameter after a window and a half."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    window(engine, 0)
    gradients: list[dict[str, Any]] = []
    for micro in range(engine.gradient_accumulation_steps()):
        engine.backward(engine(models.batch(1, micro, dist.get_rank())))
        gradients.append({n: safe_get_full_grad(p) for n, p in _trained(engine)})
        engine.step()
    told = {
        "gradients": [
            {name: None if g is None else g.numpy() for name, g in each.items()}
            for each in gradients
        ],
        "masters": {n: _numpy(safe_get_full_fp32_param(p)) for n, p in _trained(engine)},
        "moments": {
            n: _numpy(safe_get_full_optimizer_state(p, "exp_avg_sq")) for n, p in _trained(engine)
        },
        "left": [safe_get_full_grad(p) for _, p in _trained(engine)],
        "stranger": safe_get_full_fp32_param(nn.Parameter(torch.zeros(1))),
    }
    engine.destroy()
    return told


class Experts(nn.Module):
    """A block of which each input takes one expert."""

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
    """Leaf modules found, and the curve when every rank takes another expert in each step."""
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
    """The parameters that some forward uses."""
    named = engine.module.named_parameters()
    return [(n, p) for n, p in named if p.requires_grad and "unused" not in n]


def _numpy(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.numpy()


def whole_weights(settings: dict[str, Any], folder: str) -> dict[str, bool]:
    """Whether a checkpoint read without an engine holds what the engine has trained."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    window(engine, 0)
    engine.save_checkpoint(folder)
    trained = {n: safe_get_full_fp32_param(p) for n, p in _trained(engine)}
    told = {}
    if dist.get_rank() == 0:  # alone: no other rank takes part
        weights = get_fp32_state_dict_from_zero_checkpoint(folder)
        told["equal"] = all(torch.equal(weights[n], t) for n, t in trained.items())  # type: ignore[arg-type]
        told["fp32"] = {t.dtype for t in weights.values()} == {torch.float32}
        told["tied"] = torch.equal(weights["head.weight"], weights["tokens.weight"])
        loaded = load_state_dict_from_zero_checkpoint(models.tied(seed=3), folder)
        told["loaded"] = torch.equal(loaded.head.weight, weights["tokens.weight"])
    dist.barrier()
    engine.destroy()
    return told


def told_optimizer(settings: dict[str, Any]) -> list[tuple[bool, float, float]]:
    """What the optimizer says of overflow and loss scale after each step."""
    engine, optimizer, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    rows = [(optimizer.overflow, optimizer.cur_scale, optimizer.loss_scale)]
    for step in range(3):
        loss = engine(models.batch(step, 0, dist.get_rank()))
        engine.backward(loss * (float("inf") if step == 1 else 1.0))
        engine.step()
        rows.append((optimizer.overflow, optimizer.cur_scale, optimizer.loss_scale))
    engine.destroy()
    return rows


def told_masters(settings: dict[str, Any], name: str) -> tuple[set[str], int, int]:
    """Dtypes of what the optimizer says its masters are, their elements, those of the model."""
    engine, optimizer, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    masters = list(getattr(optimizer, name))
    assert all(each.dim() == 1 for each in masters) and len(masters[:2]) == 2
    told = ({str(each.dtype) for each in masters}, sum(each.numel() for each in masters))
    engine.destroy()
    return *told, sum(each.numel() for each in models.tied().parameters() if each.requires_grad)


def kinds_of_optimizer(settings: dict[str, Any]) -> list[str]:
    """Of which of DeepSpeed's classes an optimizer from the config is."""
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
    told = [each.__name__ for each in (*kinds, *wrappers) if isinstance(optimizer, each)]
    told += ["to be scaled"] if optimizer.needs_scaler() else []
    engine.destroy()
    return told


def client_losses(settings: dict[str, Any], name: str, steps: int = 4) -> list[float]:
    """The curve with an optimizer of ``ops``, or one of torch's by the same arguments."""
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
    """What is read back of what was written whole, and of what each rank wrote itself."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    window(engine, 0)
    weight = engine.module.blocks[1].up.weight
    shape = getattr(weight, "ds_shape", weight.shape)
    told: dict[str, Any] = {}
    value = torch.arange(shape.numel(), dtype=torch.float32).view(shape) / 100
    safe_set_full_fp32_param(weight, value)
    told["master"] = torch.equal(_known(safe_get_full_fp32_param(weight)), value)
    with deepspeed.zero.GatheredParameters([weight]):
        told["parameter"] = torch.equal(weight.data.float(), value.to(weight.dtype).float())
    safe_set_full_optimizer_state(weight, value + 1, "exp_avg")
    state = _known(safe_get_full_optimizer_state(weight, "exp_avg"))
    told["state"] = torch.equal(state, value + 1)
    engine.backward(engine(models.batch(1, 0, dist.get_rank())))
    safe_set_full_grad(weight, value + 2)
    told["gradient"] = torch.equal(_known(safe_get_full_grad(weight)), value + 2)
    safe_update_full_grad_vectorized([weight], lambda gradient, _: gradient * 2)
    told["updated"] = torch.equal(_known(safe_get_full_grad(weight)), (value + 2) * 2)
    own = _known(safe_get_local_fp32_param(weight))
    safe_set_local_fp32_param(weight, own + 1)
    safe_set_local_grad(weight, torch.zeros_like(own))
    safe_set_local_optimizer_state(weight, own, "exp_avg")
    told["own"] = (
        torch.equal(_known(safe_get_local_fp32_param(weight)), own + 1)
        and not _known(safe_get_local_grad(weight)).any()
        and torch.equal(_known(safe_get_local_optimizer_state(weight, "exp_avg")), own)
        and torch.equal(_known(safe_get_full_fp32_param(weight)), value + 1)
    )
    frozen = engine.module.positions.weight
    with deepspeed.zero.GatheredParameters([frozen]):
        expected = frozen.data.float().clone()
    told["frozen"] = torch.equal(_known(safe_get_full_fp32_param(frozen)), expected)
    engine.step()
    told["trains on"] = bool(torch.isfinite(engine(models.batch(2, 0, dist.get_rank()))))
    engine.destroy()
    return told


class Asking(nn.Module):
    """Asks its weights in forward what frameworks ask."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(6, 6)
        self.told: list[Any] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        self.told.append((self.head.weight.ds_status, self.head.weight.ds_id))
        return self.head(inputs).square().mean()


def asked(settings: dict[str, Any]) -> dict[str, Any]:
    """What weights say inside of forward; a part called before the whole; no forward at all."""
    torch.manual_seed(0)
    model = Asking()
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    with engine.coalesce_grad_reduction():
        pass
    before = model.head.weight.ds_id
    engine.module.blocks[0](torch.ones(2, 6))
    inputs = torch.ones(2, 6) * (dist.get_rank() + 1)
    losses = []
    for _ in range(2):
        loss = engine(inputs)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    said = {status for status, _ in model.told} == {ZeroParamStatus.AVAILABLE}
    return {"said": said, "ids": {i for _, i in model.told} == {before}, "losses": losses}


def counted(settings: dict[str, Any]) -> list[int]:
    """Samples after each of two steps, the second behind three backwards."""
    engine, *_ = deepspeed.initialize(model=models.tied(), config=settings)
    found = []
    for backwards in (1, 3):
        for micro in range(backwards):
            engine.backward(engine(models.batch(0, micro, dist.get_rank())))
        engine.step()
        found.append(engine.global_samples)
    engine.destroy()
    return found


def _known(tensor: torch.Tensor | None) -> torch.Tensor:
    if tensor is None:
        raise AssertionError("nothing was told")
    return tensor


def settled_batch(config: dict[str, Any]) -> tuple[int, int]:
    """Of a config as an object: the micro batch, and the ranks that it was settled for."""
    from dsengine.runtime.config import DeepSpeedConfig

    held = DeepSpeedConfig(config)
    return held.train_micro_batch_size_per_gpu, held.world_size
