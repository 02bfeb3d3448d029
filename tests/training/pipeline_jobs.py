"""Jobs of the tests of pipelines. Each function runs on every rank."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dsconfig
import dsengine
from dsengine.parallel.pipeline.grid import PipelineParallelGrid
from dsengine.parallel.pipeline.layers import LayerSpec, TiedLayerSpec, set_random_seed
from dsengine.parallel.pipeline.module import PipelineModule
from training.curves import Curve

VOCABULARY, WIDTH, LENGTH, SAMPLES = 48, 16, 6, 2
SEED = 7
Specs = list[LayerSpec | nn.Module | Any]


class Block(nn.Module):
    """A residual layer with submodules."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 40),
            nn.Linear(40, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Table(nn.Module):
    """An embedding with a bias of the logits, for both uses of a tied layer."""

    def __init__(self, vocabulary: int, width: int, biased: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, width) * 0.1)
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if biased else None

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.weight)


def logits_of(table: Table, x: Tensor) -> Tensor:
    return nn.functional.linear(x, table.weight, table.bias)


def cut(x: Tensor) -> Tensor:
    """A layer without parameters."""
    return x.clamp(-50, 50)


def halves(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return two trained tensors and one of integers."""
    first, second = x.chunk(2, -1)
    return first, second, torch.arange(x.shape[1])


class Joined(nn.Module):
    """Join what ``halves`` returns, on another stage."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.positions = nn.Embedding(LENGTH, width)

    def forward(self, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        first, second, places = parts
        return torch.cat([second, first], -1) + self.positions(places)


def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.float().flatten(0, 1), labels.flatten())


def specs_of(kind: str) -> Specs:
    blocks: Specs = [LayerSpec(Block, WIDTH) for _ in range(4)]
    if kind in ("tied", "tied matrix"):
        sizes = VOCABULARY, WIDTH, kind == "tied"
        first = TiedLayerSpec("table", Table, *sizes)
        last = TiedLayerSpec("table", Table, *sizes, forward_fn=logits_of)
        return [first, *blocks, cut, last]
    ends = LayerSpec(nn.Embedding, VOCABULARY, WIDTH), LayerSpec(nn.Linear, WIDTH, VOCABULARY)
    if kind == "in place":  # the second stage begins with a layer that overwrites its inputs
        middle: Specs = [LayerSpec(nn.Linear, WIDTH, WIDTH), LayerSpec(nn.ReLU, inplace=True)]
        return [ends[0], *middle, ends[1]]
    if kind == "tuples":
        return [ends[0], blocks[0], halves, LayerSpec(Joined, WIDTH), blocks[1], cut, ends[1]]
    return [ends[0], *blocks, cut, ends[1]]


def module_of(kind: str, stages: int, **options: Any) -> PipelineModule:
    chosen = {"partition_method": "uniform", "loss_fn": loss_of} | options
    return PipelineModule(
        specs_of(kind), num_stages=stages, seed_layers=True, base_seed=SEED, **chosen
    )


class Whole(nn.Module):
    """All layers in one process, with the weights that the stages begin with."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.steps: list[Any] = []
        tied: dict[str, nn.Module] = {}
        for index, spec in enumerate(specs_of(kind)):
            if not isinstance(spec, LayerSpec):
                self.steps.append(spec)
                continue
            set_random_seed(SEED + index)
            if not isinstance(spec, TiedLayerSpec):
                self.layers.append(layer := spec.build())
                self.steps.append(layer)
                continue
            if spec.key not in tied:
                tied[spec.key] = spec.build()
                self.layers.append(tied[spec.key])
            layer, function = tied[spec.key], spec.forward_fn
            self.steps.append(layer if function is None else lambda x, f=function, m=layer: f(m, x))

    def forward(self, x: Any) -> Any:
        for step in self.steps:
            x = step(x)
        return x


def sample_batch(number: int) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of one micro batch."""
    generator = torch.Generator().manual_seed(100 + number)
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def config_of(
    stage: int, accumulation: int, clip: float, optimizer: str = "AdamW"
) -> dict[str, Any]:
    rate = {"lr": 1e-2 if optimizer == "AdamW" else 0.5}
    more = {"weight_decay": 0.01, "torch_adam": True} if optimizer == "AdamW" else {}
    return {
        "train_micro_batch_size_per_gpu": SAMPLES,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": optimizer, "params": rate | more},
    }


def batches_of(step: int, accumulation: int, replica: int, replicas: int) -> Iterator[Any]:
    """Yield the micro batches of one data-parallel rank in a step."""
    for micro in range(accumulation):
        yield sample_batch((step * accumulation + micro) * replicas + replica)


def piped(
    kind: str,
    stage: int,
    stages: int,
    steps: int = 5,
    accumulation: int = 4,
    clip: float = 0.5,
    optimizer: str = "AdamW",
    module: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
    planned: bool = False,
) -> Curve:
    """Train on pipelines of ``stages``; return losses and norms, then the evaluation's loss.

    ``planned``: with a plan that was made without the model.
    """
    built = module_of(kind, stages, **(module or {}))
    config = config_of(stage, accumulation, clip, optimizer) | (more or {})
    source: dict[str, Any] = {"config": config}
    if planned:
        facts = dsconfig.gather(gpus=dist.get_world_size(), pipeline_parallel=stages)
        source = {"plan": dsconfig.plan(dsconfig.resolve(config, facts), facts)}
    engine, *_ = dsengine.initialize(model=built, **source)
    assert len(engine.plan.stages) == stages
    curve: Curve = []
    replica, replicas = engine.topology.rank("samples"), engine.topology.size("samples")
    for step in range(steps):
        loss = engine.train_batch(batches_of(step, accumulation, replica, replicas))
        curve.append((loss.item(), engine.get_global_grad_norm() or 0.0))
    loss = engine.eval_batch(batches_of(steps, accumulation, replica, replicas))
    curve.append((loss.item(), 1.0))
    engine.destroy()
    return curve


def one_process(
    kind: str,
    replicas: int,
    steps: int = 5,
    accumulation: int = 4,
    clip: float = 0.5,
    optimizer: str = "AdamW",
) -> Curve:
    """Train all layers in one process without an engine."""
    model = Whole(kind)
    options = {"lr": 1e-2, "weight_decay": 0.01} if optimizer == "AdamW" else {"lr": 0.5}
    built = getattr(torch.optim, optimizer)(model.parameters(), **options)
    curve: Curve = []
    for step in range(steps + 1):
        own = [
            loss_of(model(inputs), labels)
            for replica in range(replicas)
            for inputs, labels in batches_of(step, accumulation, replica, replicas)
        ]
        loss = torch.stack(own).mean()
        if step == steps:
            return [*curve, (loss.item(), 1.0)]
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        built.step()
        built.zero_grad()
        curve.append((loss.item(), norm.item()))
    return curve


def resumed(
    directory: str,
    stage: int,
    stages: int,
    saves_at: int | None = None,
    steps: int = 3,
    more: dict[str, Any] | None = None,
) -> Curve:
    """Train ``steps`` of accumulation 2 from a checkpoint in ``directory``, if it has one.

    ``saves_at``: save and end after so many steps. The optimizer scales the rate of two groups.
    """
    built = module_of("tied", stages)
    for parameter in built.parameters():
        parameter.data.mul_(1 + dist.get_rank())  # what is loaded replaces it
    config = config_of(stage, 2, 0.2) | (more or {})
    engine, *_ = dsengine.initialize(model=built, config=config, model_parameters=groups_of(built))
    first = 0
    if saves_at is None:
        path, _ = engine.load_checkpoint(directory)
        assert path is not None
        first = engine.global_steps
    curve: Curve = []
    replica, replicas = engine.topology.rank("samples"), engine.topology.size("samples")
    for step in range(first, first + (saves_at or steps)):
        loss = engine.train_batch(batches_of(step, 2, replica, replicas))
        curve.append((loss.item(), engine.get_global_grad_norm() or 0.0))
    if saves_at is not None:
        engine.save_checkpoint(directory)
    engine.destroy()
    return curve


def groups_of(module: nn.Module) -> list[dict[str, Any]]:
    """Return two groups; without biases on a stage, the second one is empty."""
    named = list(module.named_parameters())
    biases = [parameter for name, parameter in named if name.endswith("bias")]
    others = [parameter for name, parameter in named if not name.endswith("bias")]
    return [{"params": others}, {"params": biases, "weight_decay": 0.0, "lr": 2e-2}]


def evaluated(stages: int) -> list[Any]:
    """Return what evaluations with several options return, and the stage's place."""
    seen: list[Any] = []
    engine, *_ = dsengine.initialize(model=module_of("untied", stages), config=config_of(1, 2, 0.0))
    replica, replicas = engine.topology.rank("samples"), engine.topology.size("samples")

    def evaluate(**options: Any) -> Any:
        return engine.eval_batch(batches_of(0, 3, replica, replicas), **options)

    def noted(batch: Any) -> Any:
        seen.append(batch)
        return batch

    engine.batch_fn = noted
    three = evaluate(num_micro_batches=3).item()
    loss, logits = evaluate(return_logits=True)
    own = evaluate(bcast_loss=False)
    separate = evaluate(reduce_output=None, num_micro_batches=3)
    mean = evaluate(compute_loss=False, num_micro_batches=1)
    assert engine.mpu is engine.grid and len(seen) == 3 + 2 + 2 + 3 + 1
    found = [
        (engine.is_first_stage(), engine.is_last_stage(), engine.stage_id, engine.num_stages),
        three,
        loss.item(),
        None if logits is None else tuple(logits.shape),
        None if own is None else own.item(),
        None if separate is None else [each.item() for each in separate],
        None if mean is None else tuple(mean.shape),
    ]
    engine.destroy()
    return found


def fed_by_a_loader(directory: str) -> tuple[list[float], list[float]]:
    """Return losses of steps on ``training_data``, and of those after a checkpoint of the second.

    The data of a step after loading is that after the checkpoint.
    """
    data = [tuple(each[0] for each in sample_batch(number)) for number in range(20)]
    engine, _, loader, _ = dsengine.initialize(
        model=module_of("untied", 2), config=config_of(1, 2, 0.2), training_data=data
    )
    losses = [engine.train_batch().item() for _ in range(2)]
    engine.save_checkpoint(directory)
    engine.load_checkpoint(directory)  # of the current step
    losses += [engine.train_batch().item() for _ in range(4)]
    engine.load_checkpoint(directory)
    again = [engine.train_batch().item() for _ in range(4)]
    assert len(loader) == 10
    engine.destroy()
    return losses[2:], again


def failure_of(call: Any) -> str:
    """Return the class and message of the error that a call raises, "" if it raises none."""
    try:
        call()
    except (Exception, StopIteration) as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Alone(PipelineModule):
    """A module with a parameter outside of its layers."""

    def __init__(self) -> None:
        super().__init__([nn.Linear(2, 2), nn.Linear(2, 2)], num_stages=2)
        self.scale = nn.Parameter(torch.ones(()))


class Reporting(PipelineModule):
    def get_additional_losses(self) -> Any:
        return {"other": torch.zeros(())}


def refused(directory: str) -> dict[str, str]:
    """Return the errors of what a pipeline does not support, by name."""
    layers: Specs = [nn.Linear(2, 2), nn.Linear(2, 2)]
    shared = nn.Linear(2, 2)
    config = config_of(1, 2, 0.2)

    def initialized(model: nn.Module | None = None, **changes: Any) -> Any:
        model = model or PipelineModule(layers, num_stages=2)
        return lambda: dsengine.initialize(model=model, config=config | changes)

    found = {
        "stage 2": failure_of(initialized(zero_optimization={"stage": 2})),
        "stage 3, one stage": failure_of(
            initialized(PipelineModule(layers, num_stages=1), zero_optimization={"stage": 3})
        ),
        "offload": failure_of(
            initialized(zero_optimization={"stage": 1, "offload_optimizer": {"device": "cpu"}})
        ),
        "sparse": failure_of(initialized(sparse_gradients=True, zero_optimization={"stage": 0})),
        "sequence": failure_of(
            initialized(PipelineModule(layers, num_stages=1), sequence_parallel_size=2)
        ),
        "own parameter": failure_of(initialized(Alone())),
        "losses": failure_of(initialized(Reporting(layers, num_stages=2))),
        "shared": failure_of(lambda: PipelineModule([shared, shared], num_stages=2)),
        "few layers": failure_of(lambda: PipelineModule(layers[:1], num_stages=2)),
        "method": failure_of(
            lambda: PipelineModule(layers, num_stages=2, partition_method="profile")
        ),
        "expression": failure_of(
            lambda: PipelineModule(layers, num_stages=2, partition_method="type:(")
        ),
        "nested": failure_of(
            lambda: PipelineModule([LayerSpec(PipelineModule, layers, 2), *layers], num_stages=2)
        ),
        "interval": failure_of(
            lambda: PipelineModule(layers, num_stages=2, activation_checkpoint_interval=-1)
        ),
        "checkpointable": failure_of(
            lambda: PipelineModule(
                layers,
                num_stages=2,
                checkpointable_layers="Linear",  # type: ignore[arg-type]
            )
        ),
        "tied": failure_of(
            initialized(
                PipelineModule(
                    [TiedLayerSpec("table", Table, 4, 2, biased) for biased in (True, False)], 2
                )
            )
        ),
        "untrained": failure_of(
            initialized(PipelineModule([nn.Linear(2, 2), cut], 2, partition_method="uniform"))
        ),
        "mpu": failure_of(
            lambda: dsengine.initialize(
                model=PipelineModule(layers, num_stages=2),
                config=config,
                mpu=PipelineParallelGrid(),
            )
        ),
        "other stages": failure_of(lambda: PipelineModule(layers, num_stages=3)),
        "parts": failure_of(
            lambda: dsengine.initialize(
                model=PipelineModule([nn.Linear(2, 2) for _ in range(3 + dist.get_rank())], 2),
                config=config,
            )
        ),
    }
    engine, optimizer, *_ = dsengine.initialize(model=module_of("untied", 2), config=config)
    assert optimizer is not None
    found |= {
        "forward": failure_of(lambda: engine(1)),
        "backward": failure_of(lambda: engine.backward(torch.ones(()))),
        "step": failure_of(engine.step),
        "optimizer": failure_of(lambda: optimizer.step()),
        "boundary": failure_of(lambda: engine.set_gradient_accumulation_boundary(True)),
        "no_sync": failure_of(engine.no_sync),
        "no data": failure_of(engine.train_batch) if dist.get_rank() == 0 else "",
        "without gradients": failure_of(torch.no_grad()(engine.train_batch)),
        "exports": failure_of(engine.weight_metadata),
        "16 bits": failure_of(lambda: engine.save_16bit_model(directory)),
        "reduction": failure_of(lambda: engine.eval_batch(iter(()), reduce_output="sum")),
    }
    found |= {
        "number": failure_of(lambda: engine.eval_batch(iter(()), num_micro_batches=0)),
        "attribute": failure_of(lambda: setattr(engine, "micro_batches", 3)),
    }
    engine.checkpointer().for_deepspeed = True
    found["files"] = failure_of(lambda: engine.save_checkpoint(directory))
    engine.destroy()
    without = PipelineModule([*specs_of("untied")[:3], halves], 2, partition_method="uniform")
    engine, *_ = dsengine.initialize(model=without, config=config)
    found["scalar"] = failure_of(lambda: engine.eval_batch(batches_of(0, 2, 0, 1)))
    means = engine.eval_batch(batches_of(0, 2, 0, 1), compute_loss=False)
    assert dist.get_rank() == 0 or [each.dim() for each in means] == [3, 3, 1]
    engine.destroy()
    return found


def from_floats() -> tuple[bool, list[bool]]:
    """Train layers with reentrant checkpoints, of which the first overwrites its inputs.

    Return whether the data is as before, and whether each weight has changed.
    """
    built = PipelineModule(
        [nn.ReLU(inplace=True), *(nn.Linear(4, 4) for _ in range(3))],
        num_stages=2,
        loss_fn=nn.functional.mse_loss,
        partition_method="uniform",
        activation_checkpoint_interval=1,
        activation_checkpoint_func=partial(checkpoint, use_reentrant=True),
        checkpointable_layers=["Linear"],
    )
    engine, *_ = dsengine.initialize(model=built, config=config_of(1, 2, 0.2))
    before = [parameter.detach().clone() for parameter in built.parameters()]
    data = torch.randn(SAMPLES, 4)
    copy = data.clone()
    engine.train_batch(iter([(data, data)] * 2))
    changed = [not torch.equal(*pair) for pair in zip(before, built.parameters(), strict=True)]
    engine.destroy()
    return torch.equal(data, copy), changed


def ended_data() -> tuple[str, Curve, Curve]:
    """Return the error of a step whose data ends, and the steps after it and without it."""
    errors, curves = [], []
    for read in (1, 0):
        engine, *_ = dsengine.initialize(model=module_of("untied", 1), config=config_of(1, 2, 0.2))
        if read:
            data = iter([sample_batch(9)])
            errors.append(failure_of(lambda e=engine, d=data: e.train_batch(d)))
        curve = []
        for step in range(2):
            loss = engine.train_batch(batches_of(step, 2, 0, 1))
            curve.append((loss.item(), engine.get_global_grad_norm() or 0.0))
        curves.append(curve)
        engine.destroy()
    return errors[0], curves[0], curves[1]


def changed_shapes(dynamic: bool) -> Curve:
    """Train on micro batches of two lengths."""
    engine, *_ = dsengine.initialize(
        model=module_of("untied", 2, dynamic_shape=dynamic), config=config_of(1, 2, 0.2)
    )

    def lengths() -> Iterator[Any]:
        for number, (inputs, labels) in enumerate(batches_of(0, 2, 0, 1)):
            yield inputs[:, : LENGTH - number], labels[:, : LENGTH - number]

    loss = engine.train_batch(lengths()).item()
    curve = [(loss, engine.get_global_grad_norm() or 0.0)]
    engine.destroy()
    return curve
