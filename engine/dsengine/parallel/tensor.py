"""Layers split over ranks, with the styles of ``torch.distributed.tensor.parallel``.

[Note: replicated parameters with partial gradients]
A norm between a column-split and a row-split layer sees only this rank's heads, so its gradients
are partial sums. They are summed in a hook on the parameter, which gets those of one backward;
transformers sums what has been accumulated, and in a window of several backwards does so again.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from weakref import WeakSet, finalize, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils._pytree import tree_map_only

from dsconfig import Plan, nearest_degree
from dsconfig.features.table import FAULTY_PLANS, FEATURES
from dsengine.optimizers.precision import policy
from dsengine.parallel.tensor_plan import (
    PACKED_GATHERED,
    PER_HEAD,
    RULES,
    SUMMED,
    VOCABULARY,
    Layer,
    layers_of_plan,
    layers_of_rules,
)
from dsengine.parameters.names import own_parameters
from dsengine.parameters.packed import factor_of, in_full_order, segments
from dsengine.topology import Topology
from dsengine.torch_private.modules import buffer_table, parameter_table
from dsengine.torch_private.tensors import strided

OLDEST_TRANSFORMERS = (5, 23)
"""The first release whose plans are for DTensors and name all layers with partial gradients."""
HEADS = ("lm_head", "embed_out")
"""Names of heads that ``vocab_parallel_lm_head`` splits, as in DeepSpeed."""
_REMEDY = FEATURES["other_styles"].instead


class SummedGradients(ParallelStyle):
    """A whole layer with partial gradients. [Note: replicated parameters with partial gradients]"""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group, hooked = device_mesh.get_group(), dict[int, ref[Tensor]]()

        def summed(gradient: Tensor) -> Tensor:
            gradient = gradient.contiguous()
            dist.all_reduce(gradient, group=group)
            return gradient

        def hook_parameters(*_: Any) -> None:
            """A gathered parameter exists only now."""
            if not torch.is_grad_enabled():
                return
            for parameter in dict(own_parameters(module)).values():
                known = hooked.get(id(parameter), lambda: None)()
                if parameter.requires_grad and known is not parameter:
                    hooked[id(parameter)] = ref(parameter)
                    parameter.register_hook(summed)

        module.register_forward_pre_hook(hook_parameters)
        return module


def with_summed_gradients(value: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return ``value``, which all ranks have; its gradients are partial sums."""
    whole = DTensor.from_local(value, mesh, [Replicate()], run_check=False)
    return whole.to_local(grad_placements=[Partial()])


def summed(value: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the sum of all ranks' values."""
    partial = DTensor.from_local(value, mesh, [Partial()], run_check=False)
    return partial.redistribute(placements=[Replicate()]).to_local()


class SharedKeyPart(ParallelStyle):
    """A whole layer whose last outputs, keys with positions, go to the heads of every rank.

    The other outputs go through a column-split layer, which sums their gradients.
    """

    def __init__(self, size: int) -> None:
        """``size``: the outputs shared by all heads."""
        super().__init__()
        self.size = size

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def sum_gradients(_: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            others, shared = output.split([output.shape[-1] - self.size, self.size], dim=-1)
            return torch.cat([others, with_summed_gradients(shared, device_mesh)], dim=-1)

        module.register_forward_hook(sum_gradients)
        return module


class LocalParts(ParallelStyle):
    """A module that computes with its parts of its own parameters as ordinary tensors.

    ``partial``: gradients of inputs are partial sums. ``output`` is None (this rank's part or
    whole), ``sum`` of all ranks, or ``gather`` of the matrices with the sizes ``packed``.
    """

    def __init__(
        self, *, partial: bool = False, output: str | None = None, packed: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.partial, self.output, self.packed = partial, output, packed

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        own = dict[str, Any]()

        def use_parts(_: nn.Module, args: Any, kwargs: Any) -> Any:
            table = parameter_table(module)  # another one may have been installed
            own.clear()
            own.update(own_parameters(module))
            for name, parameter in own.items():
                if isinstance(parameter, DTensor):
                    table[name] = parameter.to_local()  # type: ignore[assignment]
                elif self.output == "sum" and name == "bias":  # added once, to the sum
                    table[name] = None
            if not self.partial:
                return args, kwargs
            return tree_map_only(
                Tensor,
                lambda x: with_summed_gradients(x, device_mesh) if x.is_floating_point() else x,
                (args, kwargs),
            )

        def restore(_: nn.Module, inputs: Any, output: Any) -> Any:
            table = parameter_table(module)
            hides_bias = "bias" in own and table["bias"] is None
            table.update(own)
            if output is None or self.output is None:  # None: the module raised an error
                return output
            if self.output == "gather":
                return self._gathered(output, device_mesh)
            whole = summed(output, device_mesh)
            return whole + own["bias"] if hides_bias else whole

        module.register_forward_pre_hook(use_parts, with_kwargs=True)
        module.register_forward_hook(restore, always_call=True)
        return module

    def _gathered(self, output: Tensor, mesh: DeviceMesh) -> Tensor:
        part = DTensor.from_local(output, mesh, [Shard(output.dim() - 1)], run_check=False)
        stored = part.redistribute(placements=[Replicate()]).to_local()
        return in_full_order(stored, output.dim() - 1, list(segments(self.packed, mesh.size())))


class DividedInput(ParallelStyle):
    """A module without parameters that every rank computes whole, before outputs are summed."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_pre_hook(lambda _, args: (args[0] / device_mesh.size(), *args[1:]))
        return module


STYLES: Mapping[str, Callable[[Any, tuple[int, ...]], ParallelStyle]] = {
    "colwise": lambda *_: ColwiseParallel(),
    "colwise_gather_output": lambda *_: ColwiseParallel(output_layouts=Replicate()),
    "colwise_rep": lambda *_: ColwiseParallel(output_layouts=Replicate()),
    "rowwise": lambda *_: RowwiseParallel(),
    "rowwise_split_input": lambda *_: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_rep": lambda *_: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda *_: RowwiseParallel(input_layouts=Replicate()),
    "embedding_colwise": lambda *_: ColwiseParallel(output_layouts=Replicate()),
    "mla_kv_a_proj": lambda config, _: SharedKeyPart(config.qk_rope_head_dim),
    "packed_colwise": lambda *_: LocalParts(partial=True),
    PACKED_GATHERED: lambda _, packed: LocalParts(partial=True, output="gather", packed=packed),
    "packed_rowwise": lambda *_: LocalParts(output="sum"),
    "moe_tp_experts": lambda *_: LocalParts(partial=True, output="sum"),
    "moe_identity_expert": lambda *_: DividedInput(),
    "local_params": lambda *_: LocalParts(),
    "all_reduce": lambda *_: LocalParts(output="sum"),
    SUMMED: lambda *_: SummedGradients(),
    VOCABULARY: lambda *_: ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
}
"""By transformers' names, the style for a model's (text) config and the sizes of packed matrices.
Those of transformers' plans, and two for rules and ``vocab_parallel_lm_head``."""
WHOLE_OUTPUT = frozenset(
    ("colwise_gather_output", "colwise_rep", "rowwise", "rowwise_split_input", "rowwise_rep")
) | {"embedding_rowwise", "embedding_colwise"}
"""Styles of torch for split layers that return what the whole layer would."""
OPTIONAL = WHOLE_OUTPUT - {"rowwise"}
"""Styles of layers that may as well stay whole: inputs are whole too.

They do if the degree does not divide them, or if they have modules of their own, such as an
embedding that normalizes its output, which is partial inside of it.
"""


_SIZES = {
    "col": ("out_features", "embedding_dim"),
    "row": ("in_features", "num_embeddings"),
}
"""Attributes of modules with the size of the split dimension."""


def split_layers(model: nn.Module, plan: Plan, topology: Topology) -> None:
    """Replace the weights of split layers by this rank's parts, as DTensors in the storage dtype.

    All ranks have the same full weights. Tied weights stay tied.
    """
    layers, mesh = layers_of(model, plan), topology.devices["tensor"]
    config, storage_dtype = _config(model), policy(plan.effective).storage_dtype
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in own_parameters(module):
            owners[parameter].append((module, name))
    modules = dict(model.named_modules())
    for layer in _splittable(layers, model, owners):
        if (module := modules.get(layer.name)) is None:
            owner, _, name = layer.name.rpartition(".")
            _split(modules[owner], name, layer, mesh)
            continue
        made = STYLES[layer.style](config, layer.packed)
        if isinstance(made, LocalParts) and _kind_of(layer.style):
            for name in dict(own_parameters(module)):
                _split(module, name, layer, mesh)
        made.src_data_rank = None  # no communication
        buffers = dict(buffer_table(module))
        parallelize_module(module, mesh, made)
        buffer_table(module).update(buffers)  # scalars, if any
        if layer.style in WHOLE_OUTPUT:
            module.register_forward_hook(_not_a_view)
        elif layer.style == VOCABULARY:
            accept_split_logits(model)
    for parameter, places in owners.items():
        module, name = places[0]
        part = parameter_table(module)[name]
        if part is parameter:
            continue
        local = part.to_local().detach().to(storage_dtype(parameter)).contiguous()
        shared = nn.Parameter(
            _as_part(local, parameter, mesh, part.placements), parameter.requires_grad
        )
        for module, name in places:
            parameter_table(module)[name] = shared


def _split(module: nn.Module, name: str, layer: Layer, mesh: DeviceMesh) -> None:
    """Replace a parameter by this rank's part, unless its style has it whole."""
    parameter = parameter_table(module)[name]
    if parameter is None or (dimension := _split_dimension(parameter, layer.style)) is None:
        return
    size = parameter.shape[dimension]
    sizes = layer.packed or (size // layer.matrices,) * layer.matrices
    rank = mesh.get_local_rank()
    own = list(segments(sizes, mesh.size()))[rank * len(sizes) : (rank + 1) * len(sizes)]
    with torch.no_grad():
        local = torch.cat(
            [parameter.narrow(dimension, each.full, each.size) for each in own], dimension
        )
    placement = Shard(dimension) if len(sizes) == 1 else strided(dimension, factor_of(sizes))
    part = _as_part(local, parameter, mesh, [placement])
    parameter_table(module)[name] = nn.Parameter(part, parameter.requires_grad)


def _as_part(local: Tensor, full: Tensor, mesh: DeviceMesh, placements: Any) -> DTensor:
    shape, stride = full.shape, torch.empty(full.shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def _split_dimension(parameter: Tensor, style: str) -> int | None:
    """Return the dimension of a parameter of a linear layer, or of experts, that is split."""
    if _kind_of(style) == "col":
        return max(parameter.dim() - 2, 0)
    return parameter.dim() - 1 if parameter.dim() > 1 else None


_losses = ExitStack()
"""Entered while a model has split logits."""
_split_logits = WeakSet[nn.Module]()
"""The models that have them."""


def accept_split_logits(model: nn.Module) -> None:
    """Let losses be computed from logits split along the vocabulary, while ``model`` has them.

    The output has them as a DTensor, which cross entropy accepts; scalars are ordinary tensors.
    """
    if not set(_split_logits):
        _losses.enter_context(loss_parallel())
    _split_logits.add(model)
    finalize(model, release_split_logits).atexit = False

    def scalars_of(_: nn.Module, inputs: Any, output: Any) -> Any:
        return tree_map_only(DTensor, lambda x: x if x.dim() else x.full_tensor(), output)

    model.register_forward_hook(scalars_of)


def release_split_logits(model: nn.Module | None = None) -> None:
    """Restore the losses of torch unless other models than ``model`` have split logits."""
    if model is not None:
        _split_logits.discard(model)
    if not set(_split_logits):
        _losses.close()


def _not_a_view(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Return the output as a tensor of its own, which scripts may write in place."""
    return output.clone()


def _splittable(
    layers: list[Layer], model: nn.Module, owners: Mapping[nn.Parameter, list[Any]]
) -> list[Layer]:
    """Return ``layers`` without those tied to a layer that is not split in the same dimension."""
    modules = dict(model.named_modules())
    dimension = {
        modules[layer.name]: _dimension(modules[layer.name], layer.style)
        for layer in layers
        if layer.name in modules
    }
    unlike = {
        module
        for places in owners.values()
        if len({dimension.get(module) for module, _ in places}) > 1
        for module, _ in places
    }
    return [layer for layer in layers if modules.get(layer.name) not in unlike]


def _dimension(module: nn.Module, style: str) -> int | None:
    """Return the dimension of the weight that is split."""
    if not _kind_of(style):
        return None
    by_rows = isinstance(module, nn.Embedding) is not (_kind_of(style) == "col")
    return 0 if by_rows else 1


def _kind_of(style: str) -> str:
    """Return ``col``, ``row`` or, for a whole layer, an empty string."""
    return next((kind for kind in ("col", "row") if f"{kind}wise" in style), "")


def layers_of(model: Any, plan: Plan) -> list[Layer]:
    """Return the layers that the config's rules, or else the model's plan, split over ranks.

    Those that may as well stay whole are left out if the degree does not divide them. Raises
    ValueError, with what to write, if there are none or they cannot be split.
    """
    degree = plan.mesh.tensor
    settings = plan.effective.config.get("tensor_parallel") or {}
    kind = str(getattr(_config(model), "model_type", ""))
    if settings.get("partition_config") or settings.get("preset_model"):
        linear = {
            name: (module.out_features, module.in_features)
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear)
        }
        others = [name for name, _ in model.named_modules() if name not in linear]
        layers = layers_of_rules(settings, linear, others, kind)
        source = RULES
    else:
        layers = layers_of_plan(_plan_of(model, degree), _names(model), kind)
        source = "the model's plan"
    unknown = sorted({layer.style for layer in layers} - STYLES.keys() - {"replicate"})
    if unknown:
        raise ValueError(
            f"tensor_parallel.autotp_size {degree}: {source} has the styles {', '.join(unknown)}: "
            f"{FEATURES['other_styles'].text}"
        )
    layers = [
        layer
        for layer in layers
        if layer.style in STYLES
        and (
            layer.style not in OPTIONAL
            or (
                not any(size % degree for size in _sizes(model, layer).values())
                and not any(model.get_submodule(layer.name).children())
            )
        )
    ]
    if settings.get("vocab_parallel_lm_head"):
        layers = _with_split_vocabulary(model, layers)
    if not any(_kind_of(layer.style) for layer in layers):
        raise ValueError(
            f"tensor_parallel.autotp_size {degree}: {source} splits no layer of "
            f"{type(model).__name__}: {_REMEDY}"
        )
    _refuse_uneven(model, layers, plan)
    return layers


def _names(model: nn.Module) -> list[str]:
    return [*(name for name, _ in model.named_modules()), *(n for n, _ in model.named_parameters())]


def _plan_of(model: Any, degree: int) -> Mapping[str, str]:
    """Return the plan of a model of transformers. Raises ValueError if there is none."""
    found = getattr(model, "tp_plan", None)
    if not isinstance(found, dict) or not found:
        raise ValueError(
            f"tensor_parallel.autotp_size {degree}: {type(model).__name__} has no tp_plan: "
            f"{_REMEDY}"
        )
    if (fault := FAULTY_PLANS.get(str(getattr(_config(model), "model_type", "")))) is not None:
        raise ValueError(
            f"tensor_parallel.autotp_size {degree}: the tp_plan of {type(model).__name__} {fault}: "
            f"{_REMEDY}"
        )
    release = str(import_module("transformers").__version__)
    if tuple(int(part) for part in release.split(".")[:2]) < OLDEST_TRANSFORMERS:
        raise ValueError(
            f"tensor_parallel.autotp_size {degree}: the plans of transformers {release} differ "
            f"from those that dsengine applies: install transformers "
            f"{'.'.join(map(str, OLDEST_TRANSFORMERS))} or later, or write {RULES}"
        )
    return found


def _config(model: Any) -> Any:
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _with_split_vocabulary(model: nn.Module, layers: list[Layer]) -> list[Layer]:
    """Let the head, and an embedding tied to it, be split along the vocabulary."""
    heads = [
        (name, module.weight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in HEADS
    ]
    if len(heads) != 1:
        raise ValueError(
            "tensor_parallel.vocab_parallel_lm_head requires one linear layer named "
            f"{' or '.join(HEADS)}, but {type(model).__name__} has {len(heads)}: remove the key"
        )
    (head, weight), modules = heads[0], model.named_modules(remove_duplicate=False)
    tied = [n for n, each in modules if isinstance(each, nn.Embedding) and each.weight is weight]
    kept = [layer for layer in layers if layer.name not in {head, *tied}]
    return [*kept, Layer(head, VOCABULARY), *(Layer(n, "embedding_rowwise") for n in tied)]


def _sizes(model: nn.Module, layer: Layer) -> dict[str, int]:
    """Return the sizes that the degree has to divide, by a description."""
    name, kind = layer.name, _kind_of(layer.style)
    modules = dict(model.named_modules())
    if (module := modules.get(name)) is None:
        parameter = model.get_parameter(name)
        dimension = _split_dimension(parameter, layer.style)
        size = 0 if dimension is None else parameter.shape[dimension] // layer.matrices
        return {f"{size} rows or columns of {name}": size}
    if layer.packed:
        return {f"{size} rows or columns in {name}": size for size in layer.packed}
    found = ((each, getattr(module, each, None)) for each in _SIZES.get(kind, ()))
    return {f"{each} {size} of {name}": size for each, size in found if isinstance(size, int)}


def _refuse_uneven(model: nn.Module, layers: list[Layer], plan: Plan) -> None:
    """Raise ValueError for a degree that does not divide heads and split dimensions."""
    sizes: dict[str, int] = {}
    config = _config(model)
    if any(layer.style in PER_HEAD for layer in layers):
        for name in ("num_attention_heads", "num_key_value_heads"):
            # Attributes that differ by layer raise an error when they are read.
            own = getattr(config, "attribute_map", {}).get(name, name)
            size = getattr(config, "__dict__", {}).get(own)
            if isinstance(size, int):
                sizes[f"{size} of {name}"] = size
    for layer in layers:
        sizes |= _sizes(model, layer)

    def divides(degree: int) -> bool:
        return all(size % degree == 0 for size in sizes.values())

    degree = plan.mesh.tensor
    if not divides(degree):
        worst = next(label for label, size in sizes.items() if size % degree)
        nearest = nearest_degree(degree, plan.mesh.world_size, divides)
        raise ValueError(
            f"tensor_parallel.autotp_size {degree} does not divide {worst}: use {nearest}"
        )
