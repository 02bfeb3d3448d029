"""Layers split over ranks, with the styles of ``torch.distributed.tensor.parallel``.

[Note: replicated parameters with partial gradients]
A norm between a column-split and a row-split layer sees only this rank's heads, so its gradients
are partial sums. They are summed in a hook on the parameter, which gets those of one backward;
transformers sums what has been accumulated, and in a window of several backwards does so again.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from dsconfig import Plan, nearest_degree
from dsengine.optimizers.precision import policy
from dsengine.parallel.tensor_plan import (
    FAULTY,
    PER_HEAD,
    RULES,
    SUMMED,
    Layer,
    layers_of_plan,
    layers_of_rules,
)
from dsengine.parameters.names import own_parameters
from dsengine.topology import Topology
from dsengine.torch_private.modules import buffer_table, parameter_table

OLDEST_TRANSFORMERS = (5, 23)
"""The first release whose plans are for DTensors and name all layers with partial gradients."""
_REMEDY = (
    f"write the rules {RULES} for its layers (column for those whose outputs are split, row for "
    "those that follow), or set autotp_size to 1 and use zero_optimization.stage 3"
)


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
            whole = DTensor.from_local(shared, device_mesh, [Replicate()], run_check=False)
            return torch.cat([others, whole.to_local(grad_placements=[Partial()])], dim=-1)

        module.register_forward_hook(sum_gradients)
        return module


STYLES: Mapping[str, Callable[[Any], ParallelStyle]] = {
    "colwise": lambda _: ColwiseParallel(),
    "colwise_gather_output": lambda _: ColwiseParallel(output_layouts=Replicate()),
    "colwise_rep": lambda _: ColwiseParallel(output_layouts=Replicate()),
    "rowwise": lambda _: RowwiseParallel(),
    "rowwise_split_input": lambda _: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_rep": lambda _: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda _: RowwiseParallel(input_layouts=Replicate()),
    "embedding_colwise": lambda _: ColwiseParallel(output_layouts=Replicate()),
    "mla_kv_a_proj": lambda config: SharedKeyPart(config.qk_rope_head_dim),
    SUMMED: lambda _: SummedGradients(),
}
"""By transformers' names, the style for a model's (text) config."""
WHOLE_OUTPUT = STYLES.keys() - {*PER_HEAD, "mla_kv_a_proj", SUMMED}
"""Styles of split layers that return what the whole layer would."""
OPTIONAL = WHOLE_OUTPUT - {"rowwise"}
"""Styles of layers that may as well stay whole: inputs are whole too."""
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
    for name, style in _splittable(layers, model, owners):
        made = STYLES[style](config)
        made.src_data_rank = None  # no communication
        module = model.get_submodule(name)
        buffers = dict(buffer_table(module))
        parallelize_module(module, mesh, made)
        buffer_table(module).update(buffers)  # scalars, if any
        if style in WHOLE_OUTPUT:
            module.register_forward_hook(_not_a_view)
    for parameter, places in owners.items():
        module, name = places[0]
        part = parameter_table(module)[name]
        if part is parameter:
            continue
        local = part.to_local().detach().to(storage_dtype(parameter)).contiguous()
        shared = nn.Parameter(
            DTensor.from_local(
                local,
                mesh,
                part.placements,
                run_check=False,
                shape=part.shape,
                stride=part.stride(),
            ),
            parameter.requires_grad,
        )
        for module, name in places:
            parameter_table(module)[name] = shared


def _not_a_view(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Return the output as a tensor of its own, which scripts may write in place."""
    return output.clone()


def _splittable(
    layers: list[Layer], model: nn.Module, owners: Mapping[nn.Parameter, list[Any]]
) -> list[Layer]:
    """Return ``layers`` without those tied to a layer that is not split in the same dimension."""
    dimension = {
        model.get_submodule(name): _dimension(model, name, style) for name, style in layers
    }
    unlike = {
        module
        for places in owners.values()
        if len({dimension.get(module) for module, _ in places}) > 1
        for module, _ in places
    }
    return [layer for layer in layers if model.get_submodule(layer.name) not in unlike]


def _dimension(model: nn.Module, name: str, style: str) -> int | None:
    """Return the dimension of the weight that is split."""
    if not _kind_of(style):
        return None
    by_rows = isinstance(model.get_submodule(name), nn.Embedding) is not (_kind_of(style) == "col")
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
    if settings.get("partition_config") or settings.get("preset_model"):
        linear = [n for n, module in model.named_modules() if isinstance(module, nn.Linear)]
        others = [n for n, module in model.named_modules() if n not in set(linear)]
        kind = str(getattr(_config(model), "model_type", ""))
        layers = layers_of_rules(settings, linear, others, kind)
        source = RULES
    else:
        layers = layers_of_plan(_plan_of(model, degree), _names(model))
        source = "the model's plan"
    unknown = sorted({style for _, style in layers} - STYLES.keys() - {"replicate"})
    if unknown:
        raise ValueError(
            f"tensor_parallel.autotp_size {degree}: {source} has the styles {', '.join(unknown)}, "
            f"which dsengine does not apply: {_REMEDY}"
        )
    layers = [layer for layer in layers if layer.style in STYLES]
    layers = [
        layer
        for layer in layers
        if layer.style not in OPTIONAL
        or not any(size % degree for size in _sizes(model, *layer).values())
    ]
    if not any(_kind_of(style) for _, style in layers):
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
    if (fault := FAULTY.get(str(getattr(_config(model), "model_type", "")))) is not None:
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


def _sizes(model: nn.Module, name: str, style: str) -> dict[str, int]:
    """Return the size of the dimension in which a layer is split, by a description."""
    module = model.get_submodule(name)
    found = ((each, getattr(module, each, None)) for each in _SIZES.get(_kind_of(style), ()))
    return {f"{each} {size} of {name}": size for each, size in found if isinstance(size, int)}


def _refuse_uneven(model: nn.Module, layers: list[Layer], plan: Plan) -> None:
    """Raise ValueError for a degree that does not divide heads and split dimensions."""
    sizes: dict[str, int] = {}
    config = _config(model)
    if any(style in PER_HEAD for _, style in layers):
        for name in ("num_attention_heads", "num_key_value_heads"):
            size = getattr(config, name, None)
            if isinstance(size, int):
                sizes[f"{size} of {name}"] = size
    for name, style in layers:
        sizes |= _sizes(model, name, style)

    def divides(degree: int) -> bool:
        return all(size % degree == 0 for size in sizes.values())

    degree = plan.mesh.tensor
    if not divides(degree):
        worst = next(label for label, size in sizes.items() if size % degree)
        nearest = nearest_degree(degree, plan.mesh.world_size, divides)
        raise ValueError(
            f"tensor_parallel.autotp_size {degree} does not divide {worst}: use {nearest}"
        )
