"""The layers of a model divided into pipeline stages: each rank builds those of its stage."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dsconfig import ModelTree
from dsconfig.features.table import FEATURES
from dsengine.parallel.pipeline.layers import (
    Layer,
    LayerSpec,
    TiedLayerSpec,
    boundaries,
    set_random_seed,
)
from dsengine.parallel.pipeline.process_topology import PipeDataParallelTopology, ProcessTopology
from dsengine.topology import all_ranks

TIED = "tied_modules"
"""Prefix of the names of tied layers."""


class PipelineError(RuntimeError):
    """The call is invalid in a pipeline."""


class PipelineModule(nn.Module):
    """A sequence of layers, each called with the outputs of the one before it.

    ``layers``: descriptions, modules, or functions without parameters. Inputs and outputs are a
    tensor or a tuple of tensors; a tuple is passed as one argument.
    ``num_stages``: or else those of ``topology``, whose first axis is "pipe".
    ``loss_fn``: called with the outputs of the last layer and the labels; without one, those
    outputs are the loss.
    ``seed_layers``: seed each layer's construction with ``base_seed`` + its index, and its forward
    with a number of its own, with ``seed_fn`` (default: all generators of Python and torch).
    ``partition_method``: "parameters", "uniform" or "type:REGEX", see ``layers.boundaries``.
    ``activation_checkpoint_interval``: layers per checkpoint; 0 keeps all activations.
    ``activation_checkpoint_func``: called with a function and its inputs (default: torch's
    checkpoint). ``checkpointable_layers``: classes of layers to checkpoint (default: all with
    parameters).
    ``dynamic_shape``: the shapes that stages exchange may change between micro batches.
    Raises ValueError if the layers or the ranks cannot be divided, and RuntimeError without a
    process group.
    """

    def __init__(
        self,
        layers: Iterable[Layer],
        num_stages: int | None = None,
        topology: ProcessTopology | None = None,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        seed_layers: bool = False,
        seed_fn: Callable[[int], Any] | None = None,
        base_seed: int = 1234,
        partition_method: str = "parameters",
        activation_checkpoint_interval: int = 0,
        activation_checkpoint_func: Callable[..., Any] | None = None,
        checkpointable_layers: list[str] | None = None,
        dynamic_shape: bool = False,
    ) -> None:
        super().__init__()
        self.loss_fn = loss_fn
        self.seed_layers, self.seed_fn, self.base_seed = seed_layers, seed_fn, base_seed
        self.set_checkpoint_interval(activation_checkpoint_interval)
        self.activation_checkpoint_func = activation_checkpoint_func
        if isinstance(checkpointable_layers, str):
            raise ValueError(
                f"checkpointable_layers is the string {checkpointable_layers!r}: pass a list of "
                "class names"
            )
        self.checkpointable_layers = checkpointable_layers
        self.dynamic_shape = dynamic_shape
        self.micro_offset = 0
        """Forwards so far, from which layers are seeded."""
        ranks = all_ranks()
        self._topology = topology or _default_topology(num_stages, ranks.size())
        _check(self._topology, num_stages, ranks.size())
        self.num_stages = self._topology.get_dim("pipe")
        self.stage_id: int = self._topology.get_coord(ranks.rank()).pipe
        specs = list(layers)
        _refuse_nested(specs)
        self.parts = boundaries(specs, self.num_stages, partition_method)
        _refuse_shared(specs, self.parts)
        self.tied_modules = nn.ModuleDict()
        self.tied_stages: dict[str, tuple[int, ...]] = _tied_stages(specs, self.parts)
        """By key of a tied layer, the stages that have a copy of it."""
        self.forward_funcs: list[Any] = []
        """The layers of this stage."""
        self.tree: ModelTree | None = None
        """The full model, once ``initialize`` has collected the stages."""
        self._build(specs)

    def _build(self, specs: Sequence[Layer]) -> None:
        for index in self._own_layers():
            layer = specs[index]
            self._seed(self.base_seed + index)
            if isinstance(layer, TiedLayerSpec):
                if layer.key not in self.tied_modules:
                    self.tied_modules[layer.key] = layer.build()
                tied = self.tied_modules[layer.key]
                function = layer.forward_fn
                self.forward_funcs.append(tied if function is None else partial(function, tied))
                continue
            built = layer.build() if isinstance(layer, LayerSpec) else layer
            if isinstance(built, nn.Module):
                self.add_module(str(index), built)
            self.forward_funcs.append(built)

    def _own_layers(self) -> range:
        return range(self.parts[self.stage_id], self.parts[self.stage_id + 1])

    def _seed(self, seed: int) -> None:
        if self.seed_layers:
            (self.seed_fn or set_random_seed)(seed)

    def forward(self, forward_input: Any) -> Any:
        """Return the outputs of this stage's layers."""
        self.micro_offset += 1
        values, interval = forward_input, self.activation_checkpoint_interval
        count = len(self.forward_funcs)
        for start in range(0, count, interval or count):
            end = min(start + (interval or count), count)
            run = partial(self._run, start, end, self.micro_offset + 1)
            if interval > 0 and self._is_checkpointable(start, end):
                values = self._checkpoint(run, values)
            else:
                values = run(values)
        return values

    def _run(self, start: int, end: int, offset: int, values: Any) -> Any:
        """Return the outputs of some layers; ``offset``: the number of the forward, for seeds."""
        for index in range(start, end):
            self._seed(self.base_seed * offset + self._own_layers()[index])
            values = self.forward_funcs[index](values)
        return values

    def _checkpoint(self, run: Callable[[Any], Any], values: Any) -> Any:
        if self.activation_checkpoint_func is None:
            return checkpoint(run, values, use_reentrant=False)
        if not isinstance(values, tuple):
            return self.activation_checkpoint_func(run, values)
        return self.activation_checkpoint_func(lambda *given: run(given), *values)

    def _is_checkpointable(self, start: int, end: int) -> bool:
        functions = self.forward_funcs[start:end]
        if self.checkpointable_layers is not None:
            return all(type(each).__name__ in self.checkpointable_layers for each in functions)
        modules = [each for each in functions if isinstance(each, nn.Module)]
        return any(next(each.parameters(), None) is not None for each in modules)

    def set_checkpoint_interval(self, interval: int) -> None:
        """Set the layers per checkpoint. Raises ValueError unless it is 0 or positive."""
        if type(interval) is not int or interval < 0:
            raise ValueError(
                f"activation_checkpoint_interval {interval!r} is invalid: use 0 or a positive "
                "integer"
            )
        self.activation_checkpoint_interval = interval

    def layer_names(self) -> list[str]:
        """Return the names of this stage's layers that are modules, tied ones once."""
        children = dict(self.named_children())
        own = [str(index) for index in self._own_layers() if str(index) in children]
        return own + [f"{TIED}.{key}" for key in self.tied_modules]

    def partitions(self) -> list[int]:
        """Return the first layer of each stage, and the number of layers."""
        return self.parts

    def stage_owner(self, layer_idx: int) -> int:
        """Return the stage of a layer. Raises ValueError for an unknown layer."""
        if not 0 <= layer_idx < self.parts[-1]:
            raise ValueError(f"layer {layer_idx} is not one of {self.parts[-1]} layers")
        return _stage_of(self.parts, layer_idx)

    def topology(self) -> ProcessTopology:
        return self._topology

    def num_pipeline_stages(self) -> int:
        return self.num_stages

    def get_additional_losses(self) -> None:
        """Return None: losses to report besides the one to minimize are not collected."""
        return

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the forward of each layer of this stage with torch.compile."""
        for layer in self.forward_funcs:
            if isinstance(layer, nn.Module):
                layer.compile(*args, **kwargs)


def refuse_stages(module: nn.Module, call: str, feature: str) -> None:
    """Raise PipelineError, with the table's text, if a model is divided into several stages."""
    if isinstance(module, PipelineModule) and module.num_stages > 1:
        raise PipelineError(f"{call}: {FEATURES[feature].text}")


def _default_topology(num_stages: int | None, ranks: int) -> ProcessTopology:
    if num_stages is None:
        raise RuntimeError("PipelineModule requires num_stages or topology: pass one")
    if num_stages < 1 or ranks % num_stages:
        raise RuntimeError(
            f"num_stages ({num_stages}) must divide the number of ranks ({ranks}): start a "
            "multiple of the stages, or change num_stages"
        )
    return PipeDataParallelTopology(num_pp=num_stages, num_dp=ranks // num_stages)


def _check(topology: ProcessTopology, num_stages: int | None, ranks: int) -> None:
    """Raise ValueError for a topology of other ranks, or with axes in another order."""
    sizes = {axis: topology.get_dim(axis) for axis in topology.get_axis_names()}
    if topology.world_size() != ranks:
        raise ValueError(
            f"the topology has {topology.world_size()} ranks, but {ranks} are running: "
            "build it for all ranks"
        )
    if num_stages not in (None, sizes.get("pipe")):
        raise ValueError(f"num_stages {num_stages} contradicts the topology {sizes}: pass one")
    if any(size > 1 for axis, size in sizes.items() if axis not in ("pipe", "data")):
        raise ValueError(f"the topology is {sizes}: {FEATURES['pipeline_combinations'].text}")
    if list(sizes)[:1] != ["pipe"]:
        raise ValueError(f"the first axis of the topology {sizes} must be pipe: reorder its axes")


def _stage_of(parts: Sequence[int], index: int) -> int:
    return next(stage for stage, end in enumerate(parts[1:]) if index < end)


def _tied_stages(specs: Sequence[Layer], parts: Sequence[int]) -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    for index, layer in enumerate(specs):
        if isinstance(layer, TiedLayerSpec):
            found.setdefault(layer.key, set()).add(_stage_of(parts, index))
    return {key: tuple(sorted(found[key])) for key in sorted(found)}


def _refuse_nested(specs: Sequence[Layer]) -> None:
    """Raise ValueError for a pipeline as a layer, which would run those of one stage only."""
    for index, layer in enumerate(specs):
        described = isinstance(layer, LayerSpec) and issubclass(layer.typename, PipelineModule)
        modules = layer.modules() if isinstance(layer, nn.Module) else ()
        if described or any(isinstance(each, PipelineModule) for each in modules):
            raise ValueError(
                f"layer {index} of a PipelineModule is, or has, a PipelineModule: pass its layers "
                "instead"
            )


def _refuse_shared(specs: Sequence[Layer], parts: Sequence[int]) -> None:
    """Raise ValueError if layers of several stages share a parameter: its copies would diverge."""
    stage_of: dict[int, tuple[int, int]] = {}
    for index, layer in enumerate(specs):
        if not isinstance(layer, nn.Module):
            continue
        stage = _stage_of(parts, index)
        for parameter in layer.parameters():
            other, first = stage_of.setdefault(id(parameter), (stage, index))
            if other != stage:
                raise ValueError(
                    f"layers {first} and {index} share a parameter, but are in the pipeline stages "
                    f"{other} and {stage}: describe both with TiedLayerSpec"
                )


def tied_parameters(module: PipelineModule) -> Iterator[tuple[str, tuple[int, ...], nn.Parameter]]:
    """Yield name, stages and parameter of each weight of this stage that others have too."""
    for key, stages in module.tied_stages.items():
        if len(stages) > 1 and module.stage_id in stages:
            layer = module.tied_modules[key]
            for name, parameter in layer.named_parameters(prefix=f"{TIED}.{key}"):
                yield name, stages, parameter
