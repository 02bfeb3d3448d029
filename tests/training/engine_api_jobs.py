"""Jobs for engine methods besides the plain loop."""

import copy
import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dsengine
from dsengine.loop.offload_states import offloadable_states
from dsengine.observation.memory import LiveBytes
from dsengine.tiers.offloaded_states import OffloadDeviceEnum, OffloadedStates, OffloadStateTypeEnum
from dsengine.torch_private.groups import collective_of
from dsengine.torch_private.tensors import local_part
from narrowing import of_type
from training import models
from training.jobs import config, window


def started(settings: dict[str, Any], **options: Any) -> Any:
    engine, *_ = dsengine.initialize(model=models.tied(), config=settings, **options)
    return engine


def counters(settings: dict[str, Any], backwards: int = 1) -> list[tuple[Any, ...]]:
    """Return counters and boundaries after each step of two windows."""
    engine = started(settings)
    rows = []
    for micro in range(2 * engine.gradient_accumulation_steps()):
        boundary = engine.is_gradient_accumulation_boundary()
        for _ in range(backwards):
            engine.backward(engine(models.batch(0, micro, dist.get_rank())))
        engine.step()
        rows.append(
            (
                boundary,
                engine.was_step_applied(),
                engine.micro_steps,
                engine.global_steps,
                engine.global_samples,
            )
        )
    engine.destroy()
    return rows


def loaders(settings: dict[str, Any]) -> dict[str, Any]:
    """Return this rank's batches from the loaders of ``initialize`` and ``deepspeed_io``."""
    samples = list(range(8))
    engine = started(settings, training_data=samples, collate_fn=_negative)
    result: dict[str, Any] = {"initialize": list(engine.training_dataloader)}
    result["inherited"] = list(engine.deepspeed_io(samples))
    result["own"] = list(engine.deepspeed_io(samples, collate_fn=_next))
    engine.collate_fn = list
    for route in ("train", "eval", "predict"):
        result[route] = list(engine.deepspeed_io(samples, route=route))
    result["given"] = list(
        engine.deepspeed_io(samples, 2, data_sampler=[5, 7, 1, 3], pin_memory=False)
    )
    result["workers"] = [
        engine.deepspeed_io(samples, num_local_io_workers=n).loader.num_workers for n in (None, 1)
    ]
    engine.destroy()
    return result


def _negative(batch: list[int]) -> list[int]:
    return [-i for i in batch]


def _next(batch: list[int]) -> list[int]:
    return [i + 1 for i in batch]


def ways_of_backward(settings: dict[str, Any], way: str, steps: int = 3) -> list[float]:
    """Return the losses with one of the ways scripts compute gradients."""
    engine = started(settings)
    curve = []
    for step in range(steps):
        curve.append(_window_by(engine, way, step))
    engine.destroy()
    return curve


def _window_by(engine: Any, way: str, step: int) -> float:
    total, steps = 0.0, engine.gradient_accumulation_steps()
    if way == "coalesced":
        with engine.coalesce_grad_reduction():
            for micro in range(steps):
                loss = engine(models.batch(step, micro, dist.get_rank()))
                engine.backward(loss)
                total += loss.item()
        if engine.managed_gradient_accumulation():
            engine.set_gradient_accumulation_boundary(True)
        engine.step()
        return _mean(total / steps)
    for micro in range(steps):
        loss = engine(models.batch(step, micro, dist.get_rank()))
        if way == "direct":
            loss.backward()
        elif way == "scaled":
            engine.scale(loss).backward()
        elif way == "accelerate":
            last = micro == steps - 1
            engine.set_gradient_accumulation_boundary(last)
            engine.backward(loss)
            if last:
                engine.step()
        elif way == "no_sync" and micro < steps - 1:
            with engine.no_sync():
                engine.backward(loss)
        else:
            engine.backward(loss)
        if way != "accelerate":
            engine.step()
        total += loss.item()
    return _mean(total / steps)


def _mean(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def invalid_calls(settings: dict[str, Any]) -> tuple[list[str], bool, int, bool]:
    """Return the AssertionErrors of invalid calls, and two getters."""
    engine, output = started(settings), list[str]()

    def stepped() -> None:
        with engine.no_sync():
            engine.step()

    def nested() -> None:
        with engine.coalesce_grad_reduction(), engine.no_sync():
            pass

    def scaled() -> None:
        engine.scale(torch.ones(2))

    def bounded() -> None:
        engine.set_gradient_accumulation_boundary(True)

    for misuse in (stepped, nested, scaled, bounded, dsengine.initialize):
        try:
            misuse()
        except AssertionError as error:
            output.append(str(error))
    with engine.coalesce_grad_reduction():
        for micro in range(2):
            engine.backward(engine(models.batch(0, micro, dist.get_rank())))
    engine.step()
    result = engine.managed_gradient_accumulation(), engine.tput_timer.batch_size
    return output, *result, engine.was_step_applied()


def compute_dtype_views(settings: dict[str, Any]) -> dict[str, Any]:
    """Check the views that modules have at stage 3 in mixed precision, and writes to them."""
    engine = started(settings)
    window(engine, 0)
    weight: Any = engine.module.head.weight
    master: Any = engine.sharding.masters["tokens.weight"]
    exact = local_part(master).clone()
    result: dict[str, Any] = {
        "dtypes": sorted({str(p.dtype) for p in engine.module.parameters()}),
        "state": str(engine.module.state_dict()["head.weight"].dtype),
        "stepped": sorted({str(p.dtype) for p in engine.optimizer.param_groups[0]["params"]}),
        "shape": tuple(weight.shape) == tuple(master.shape) and isinstance(weight, nn.Parameter),
        "values": torch.equal(_full(weight), _full(master).to(weight.dtype)),
        "read": torch.equal(_full(weight * 1), _full(weight)),
    }
    with dsengine.zero.GatheredParameters([weight], modifier_rank=0):
        result["gathered"] = str(weight.dtype)
    engine.module.blocks.to("cpu")
    engine.module.load_state_dict(engine.module.state_dict())
    result["live_tensors"] = torch.equal(local_part(master), exact)
    result |= _loaded_in_place(engine.module, master)
    with torch.no_grad():
        weight.mul_(2)
        weight.data.div_(4)
    result["written"] = torch.equal(local_part(master), exact / 2)
    result |= _written_otherwise(engine.module, weight, master)
    with dsengine.zero.GatheredParameters([weight], modifier_rank=0):
        weight.data[0] = 3.0
        result["copied"] = isinstance(copy.deepcopy(weight), nn.Parameter)
    result["row"] = master.full_tensor()[0].eq(3).all().item()
    engine.to("cpu")
    result["again"] = sorted({str(p.dtype) for p in engine.module.parameters()})
    window(engine, 1)
    masters = engine.sharding.masters
    result["same"] = engine.module.twice.weight is next(engine.module.twice.parameters())
    engine.module.twice.weight.requires_grad_(False)
    result["frozen"] = not masters["twice.weight"].requires_grad
    engine.destroy()
    return result


def _full(tensor: Any) -> Tensor:
    return tensor.full_tensor()


def _loaded_in_place(module: nn.Module, master: Any) -> dict[str, bool]:
    """Whether values that torch's checkpoints write into a state_dict can be loaded from it."""
    before = local_part(master).clone()
    state = module.state_dict()
    state["tokens.weight"].to_local().mul_(2)
    detached = state["tokens.weight"].detach().to_local()
    live_tensors = torch.equal(detached.float(), before.to(detached.dtype).float() * 2)
    untouched = torch.equal(local_part(master), before)
    module.load_state_dict(state)
    loaded = torch.equal(local_part(master), before.to(state["tokens.weight"].dtype).float() * 2)
    with torch.no_grad():
        local_part(master).copy_(before)
    return {"read_apart": untouched, "loaded_in_place": loaded, "detached": live_tensors}


def _written_otherwise(module: nn.Module, weight: Any, master: Any) -> dict[str, bool]:
    """Whether all ways of writing, copying and casting views reach the shard."""
    local = local_part(master)
    # Persistent parameters are full, and torch does not mix full tensors and shards in one call.
    parameters: list[Tensor] = [p for p in module.parameters() if isinstance(p, DTensor)]
    result: dict[str, bool] = {}
    for name, factor in (("lists", 2.0), ("out", 3.0), ("data", 0.5), ("mixed", 1.0)):
        before = local.clone()
        with torch.no_grad():
            if name == "lists":
                torch._foreach_mul_(parameters, factor)  # pyright: ignore[reportPrivateImportUsage]
                others = [p for p in parameters if p is not weight]
                torch._foreach_div_(others, factor)  # pyright: ignore[reportPrivateImportUsage]
            elif name == "out":
                torch.mul(weight, factor, out=weight)
            elif name == "data":
                weight.data = weight.data * factor
                before = before.to(weight.dtype)
            else:
                weight.lerp_(weight.detach().clone(), 0.0)
        result[name] = torch.equal(local, before.float() * factor)
    twin = copy.deepcopy(weight)
    result["twin"] = isinstance(twin, nn.Parameter) and torch.equal(_full(twin), _full(weight))
    result["printed"] = repr(twin) == repr(weight.data + 0)
    blocks = cast(Any, module.blocks)
    inner = list(blocks.parameters())
    blocks.float()
    result["cast"] = {p.dtype for p in inner} == {twin.dtype}
    result["kept_objects"] = all(p is q for p, q in zip(inner, blocks.parameters(), strict=True))
    module.load_state_dict({k: v * 2 for k, v in module.state_dict().items()}, assign=True)
    result["assigned"] = cast(Any, module.tokens).weight is weight and torch.equal(
        _full(master), 2 * _full(twin).float()
    )
    return result


def loaded_weights(settings: dict[str, Any], prefix: str) -> tuple[float, float, list[str]]:
    """Return the loss with another model's weights loaded, and that model's own loss."""
    other = models.tied(seed=5)
    state = {prefix + name: tensor for name, tensor in other.state_dict().items()}
    del state[prefix + "head.weight"]
    engine = started(settings)
    window(engine, 0)
    engine.load_state_dict(state)
    batch = models.batch(3, 0, 0)
    engine.eval()
    with torch.no_grad():
        ours, theirs = engine(batch).item(), other(batch).item()
    engine.train()
    window(engine, 1)
    messages = []
    try:
        engine.load_state_dict({"nonsense": torch.zeros(1)})
    except RuntimeError as error:
        messages.append(str(error))
    engine.destroy()
    return ours, theirs, messages


def moved(settings: dict[str, Any]) -> list[float]:
    """Return losses with ``engine.to(engine.device)`` between steps."""
    engine = started(settings)
    curve = [window(engine, 0)]
    engine.to(engine.device)
    curve.append(window(engine, 1))
    engine.module.float() if settings["zero_optimization"]["stage"] == 0 else None
    curve.append(window(engine, 2))
    engine.destroy()
    return curve


class Double(nn.Module):
    """Two losses; the second can be unused."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.first = nn.Linear(8, 1)
        self.second = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.body(x))
        return {"first": self.first(hidden).mean(), "second": self.second(hidden).square().mean()}


def branches(stage: int) -> float:
    """Train with the second branch used on every other step only; return the last loss."""
    torch.manual_seed(0)
    engine, *_ = dsengine.initialize(model=Double(), config=config(stage))
    loss = torch.zeros(())
    for step in range(6):
        outputs = engine(torch.ones(2, 8) * (1 + dist.get_rank()))
        loss = outputs["first"] if step % 2 else outputs["first"] + outputs["second"]
        engine.backward(loss)
        engine.step()
    engine.destroy()
    return _mean(loss.item())


def printed(settings: dict[str, Any], steps: int = 2) -> str:
    """Return what rank 0 prints while training."""
    screen = io.StringIO()
    with redirect_stderr(screen):
        engine = started(settings)
        for step in range(steps):
            window(engine, step)
        engine.destroy()
    return screen.getvalue()


def failure(settings: dict[str, Any], kind: str) -> tuple[str, str, bool, str]:
    """Provoke a failure.

    Return its type and message, whether the weights are unchanged, and what was printed.
    """
    screen = io.StringIO()
    engine = started(settings)
    window(engine, 0)
    before = {name: t.detach().clone() for name, t in engine.sharding.masters.items()}
    try:
        loss = engine(models.batch(1, 0, dist.get_rank()))
        if kind == "nan" and dist.get_rank() == 1:
            loss = loss * float("nan")
        with redirect_stderr(screen):
            engine.backward(loss)
            engine.step()
        kind, message = "", ""
    except Exception as error:  # the error is returned
        kind, message = type(error).__name__, str(error)
    same = all(
        torch.equal(local_part(before[n]), local_part(t))
        for n, t in engine.sharding.masters.items()
    )
    engine.destroy()
    return kind, message, same, screen.getvalue()


def combinations(
    stage: int, client_optimizer: str, client_schedule: str
) -> tuple[list[float], str]:
    """Return learning rates after three steps with optimizer and schedule from config or client."""
    settings = config(stage, scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 4}})
    model = models.tied()
    options: dict[str, Any] = {"model_parameters": model.parameters()}
    if client_optimizer == "instance":
        options["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.5)
    elif client_optimizer == "callable":
        options["optimizer"] = lambda parameters: torch.optim.SGD(parameters, lr=0.5)
    if client_schedule == "instance":
        options["lr_scheduler"] = torch.optim.lr_scheduler.StepLR(
            of_type(options["optimizer"], torch.optim.Optimizer), 1
        )
    elif client_schedule == "callable":
        options["lr_scheduler"] = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1)
    engine, optimizer, _, schedule = dsengine.initialize(model=model, config=settings, **options)
    for step in range(3):
        window(engine, step)
    rates = engine.get_lr()
    name = f"{type(optimizer).__name__} {type(schedule).__name__}"
    engine.destroy()
    return rates, name


def every_optimizer(stage: int, name: str, params: dict[str, Any]) -> list[float]:
    """Return the losses of four steps with optimizer ``name``."""
    # DeepSpeed refuses Muon with reduce_scatter, and the same rule applies here.
    settings = config(
        stage, optimizer={"type": name, "params": params}, zero={"reduce_scatter": name != "Muon"}
    )
    model = models.tied()
    matrices = [p for p in model.parameters() if p.dim() == 2 and p.requires_grad]
    options: dict[str, Any] = {"model_parameters": matrices} if name == "Muon" else {}
    engine, *_ = dsengine.initialize(model=model, config=settings, **options)
    curve = [window(engine, step) for step in range(4)]
    engine.destroy()
    return curve


def factored_moments_move(folder: str) -> list[list[float]]:
    """Return losses of six Adafactor steps, with a save and a load at another stage in between.

    One weight is a single row, whose column moments have the weight's own shape.
    """
    return [_six_steps(folder, first, then) for first, then in ((0, 0), (0, 2), (2, 3), (3, 0))]


def _six_steps(folder: str, first: int, then: int) -> list[float]:
    curve: list[float] = []
    for stage in (first, then):
        torch.manual_seed(0)
        adafactor = {"type": "Adafactor", "params": {"lr": 0.05}}
        engine, *_ = dsengine.initialize(model=Double(), config=config(stage, optimizer=adafactor))
        if curve:
            engine.load_checkpoint(f"{folder}/{first}{then}")
        for step in range(3):
            outputs = engine(torch.ones(2, 8) * (1 + dist.get_rank() + step))
            loss = outputs["first"] + outputs["second"]
            engine.backward(loss)
            engine.step()
            curve.append(_mean(loss.item()))
        engine.save_checkpoint(f"{folder}/{first}{then}")
        engine.destroy()
    return curve


class Tables(nn.Module):
    """Matrices and other parameters, with names by which Muon recognizes embedding tables."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(models.VOCABULARY, 16)
        self.blocks = nn.ModuleList([models.Block(16) for _ in range(2)])
        self.twice = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids[:, :-1])
        for block in self.blocks:
            x = self.twice(block(x))
        logits = nn.functional.linear(self.norm(x), self.embedding.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def muon_with_adam(stage: int) -> dict[str, Any]:
    """Return which parameters Muon updates, the learning rates and the losses."""

    def started_with(params: dict[str, Any]) -> Any:
        torch.manual_seed(0)
        muon = {"type": "Muon", "params": params}
        settings = config(stage, optimizer=muon, zero={"reduce_scatter": False})
        return dsengine.initialize(model=Tables(), config=settings)[0]

    engine = started_with({"lr": 0.001, "muon_lr": 0.05, "momentum": 0.9, "betas": [0.8, 0.9]})
    curve = [window(engine, step) for step in range(4)]
    names = {id(part): name for name, part in engine.binding.shards.items()}
    taken: dict[bool, set[str]] = {True: set(), False: set()}
    for group in engine.optimizer.param_groups:
        taken[group["use_muon"]] |= {names[id(p)] for p in group["params"]}
    rates = {group["use_muon"]: group["lr"] for group in engine.optimizer.param_groups}
    engine.destroy()
    return {
        "muon": {name for name in taken[True] if "blocks.1" not in name and "down" not in name},
        "adam": taken[False],
        "rates": rates,
        "curve": curve,
        "refused": _message(lambda: started_with({"lr": 0.1, "nonsense": 1})),
    }


def refused_optimizers(stage: int, name: str) -> tuple[str, str]:
    """Return the errors for an unsupported optimizer from the config and from the script."""
    kind = getattr(torch.optim, name)
    named = config(stage, optimizer={"type": name, "params": {"lr": 0.1}})
    model = models.tied()
    own = kind([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return (
        _message(lambda: dsengine.initialize(model=models.tied(), config=named)),
        _message(lambda: dsengine.initialize(model=model, config=config(stage), optimizer=own)),
    )


def existing_state(stage: int) -> list[float]:
    """Return losses with a client optimizer that has already stepped."""
    model = models.tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for rank in range(2):
        model(models.batch(0, 0, rank).cpu()).backward()
    optimizer.step()
    optimizer.zero_grad()
    engine, *_ = dsengine.initialize(model=model, config=config(stage), optimizer=optimizer)
    curve = [window(engine, step) for step in range(4)]
    engine.destroy()
    return curve


def evaluation_only(stage: int) -> float:
    """Evaluate without an optimizer; step() raises."""
    settings = config(stage)
    del settings["optimizer"]
    engine, optimizer, _, schedule = dsengine.initialize(model=models.tied(), config=settings)
    assert optimizer is None and schedule is None
    engine.eval()
    with torch.no_grad():
        loss = engine(models.batch(0, 0, 0)).item()
    try:
        engine.step()
    except RuntimeError as error:
        assert "optimizer" in str(error)
    else:
        raise AssertionError("step() without optimizer")
    engine.destroy()
    return loss


def written(settings: dict[str, Any], folder: str) -> list[str]:
    """Return the names of the files that monitors and profiler write."""
    printed(settings, steps=3)
    dist.barrier()
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


class Words(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8, sparse=sparse)
        self.head = nn.Linear(8, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.table(ids)), ids)


class Shared(nn.Module):
    """A layer with three names, as in ALBERT, and two layers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([models.Block(models.WIDTH)] * 3)
        self.own = nn.ModuleList(models.Block(models.WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self.layers, *self.own):
            x = layer(x)
        return x.square().mean()


def shared_layers(stage: int) -> list[float]:
    torch.manual_seed(0)
    engine, *_ = dsengine.initialize(model=Shared(), config=config(stage))
    curve = []
    for step in range(4):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        loss = engine(torch.randn(2, models.WIDTH, generator=generator))
        engine.backward(loss)
        engine.step()
        curve.append(_mean(loss.item()))
    engine.destroy()
    return curve


class SentSparse(TorchDispatchMode):
    """Records whether collectives send sparse tensors, which NCCL cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := collective_of(func)) is not None:
            sent = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            self.found[name] = any(tensor.is_sparse for tensor in sent)
        return func(*args, **(kwargs or {}))


def embedding(settings: dict[str, Any], sparse: bool) -> tuple[list[float], dict[str, bool]]:
    """Return losses of five steps of a model whose embedding may have sparse gradients.

    Ranks have gradients of different lengths. Also return the collectives of the backwards, and
    whether they sent sparse tensors; the reducer's own collectives are not seen.
    """
    torch.manual_seed(0)
    engine, *_ = dsengine.initialize(model=Words(sparse), config=settings)
    curve, sent = [], SentSparse()
    for _ in range(5):
        loss = engine(torch.arange(4 + dist.get_rank()) + 3 * dist.get_rank())
        with sent:
            engine.backward(loss)
        engine.step()
        curve.append(_mean(loss.item()))
    engine.destroy()
    return curve, sent.found


def offloaded_in_window(settings: dict[str, Any]) -> dict[str, Any]:
    """Offload all states within a window and restore them; train on.

    On CPU ``offload_states`` moves nothing, so its implementation is called directly.
    """
    engine = started(settings)
    curve = [window(engine, 0)]
    loss = engine(models.batch(1, 0, dist.get_rank()))
    engine.backward(loss)
    engine.step()
    engine.sharding.release()
    live = LiveBytes(engine.device)
    live.start("before")
    offloaded = OffloadedStates(engine.device)
    states = offloadable_states(engine.sharding, engine._gradients, engine.binding)
    live.enter("away")
    freed = offloaded.offload(states, set(OffloadStateTypeEnum), pin=False)
    live.enter("back")
    empty = [
        kind
        for kind, tensors in states.items()
        if all(local_part(t).untyped_storage().nbytes() == 0 for t in tensors)
    ]
    offloaded.restore()
    live.stop()
    second = engine(models.batch(1, 1, dist.get_rank()))
    engine.backward(second)
    engine.step()
    curve += [_mean((loss.item() + second.item()) / 2), window(engine, 2)]
    live_tensors = {
        local_part(tensor).untyped_storage()._cdata: tensor
        for tensors in offloadable_states(
            engine.sharding, engine._gradients, engine.binding
        ).values()
        for tensor in tensors
    }
    total = sum(local_part(t).untyped_storage().nbytes() for t in live_tensors.values())
    engine.destroy()
    return {
        "curve": curve,
        "freed": freed,
        "total": total,
        "empty": [str(kind) for kind in empty],
        "live": dict(live.at_exit),
    }


def single_copy_of_shards(settings: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes freed by offloading masters, then parameters."""
    engine = started(settings)
    window(engine, 0)
    offloaded = OffloadedStates(engine.device)
    states = offloadable_states(engine.sharding, engine._gradients, engine.binding)
    first = offloaded.offload(states, [OffloadStateTypeEnum.hp_params], pin=False)
    second = offloaded.offload(states, [OffloadStateTypeEnum.lp_params], pin=False)
    offloaded.restore()
    engine.destroy()
    return first, second


def offloaded(settings: dict[str, Any]) -> dict[str, Any]:
    """Call the engine's methods; return their errors and the losses afterwards."""
    engine = started(settings)
    curve = [window(engine, 0)]
    output = {}
    engine.offload_states(include=["optim_states"])
    curve.append(engine(models.batch(1, 0, dist.get_rank())).item())
    output["step"] = _message(engine.step)
    engine.offload_states()
    output["forward"] = _message(lambda: engine(models.batch(1, 0, 0)))
    output["save"] = _message(lambda: engine.save_checkpoint("nowhere"))
    engine.reload_states(non_blocking=True)
    output["device"] = _message(lambda: engine.offload_states(device="meta"))
    output["nvme"] = _message(lambda: engine.offload_states(device=OffloadDeviceEnum.nvme))
    output["name"] = _message(lambda: engine.offload_states(include=["weights"]))
    curve += [window(engine, 1)]
    engine.destroy()
    return {"curve": curve, "messages": output}


def refused_offload(settings: dict[str, Any]) -> str:
    engine = started(settings)
    message = _message(engine.offload_states)
    engine.destroy()
    return message


def _message(action: Any) -> str:
    try:
        action()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
