"""Models at stage 3: building, gathering, tiles, and leaf modules.

[Note: leaf modules]
Each rank may use different parts of a leaf module, such as experts. Every parameter in it is
reduced on all ranks at stages 1 to 3, with zeros from ranks that did not use it; a parameter that
no rank used is updated with a zero gradient. At stage 3 it is gathered with the block that contains
it. ``initialize`` reads the marks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dsengine.loop.optimizer_compat import ParameterOffload
from dsengine.parallel.pipeline.partition import partition_uniform
from dsengine.sharding import Sharding
from dsengine.sharding.leaves import is_leaf, is_of_class, mark_leaf
from dsengine.sharding.zero.gathered import GatheredParameters

_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(
    fn: Callable[..., Any],
    target_fp_dtype: torch.dtype | None = None,
    target_device: torch.device | None = None,
) -> Callable[..., Any]:
    """Return ``fn`` unchanged: Init does not wrap torch's constructors.

    transformers replaces this function while it builds a model, to prevent casts of position
    tensors.
    """
    del target_fp_dtype, target_device
    return fn


@contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[Any]:
    """Unshard all parameters of an engine inside. Collective: all ranks generate.

    Forwards inside gather nothing if memory allows a second copy of the parameters;
    ``engine.generate`` needs only one.
    """
    offload = getattr(getattr(model, "optimizer", None), "parameter_offload", None)
    sharding = getattr(model, "sharding", None)
    gathered = sharding.gathered() if isinstance(sharding, Sharding) else nullcontext()
    with GatheredParameters(model.parameters()), gathered:
        if isinstance(offload, ParameterOffload):
            offload.remove_hooks()
        try:
            yield model
        finally:
            if isinstance(offload, ParameterOffload):
                offload._register_deepspeed_module(offload.module)


class TiledLinear(nn.Module):
    """``nn.Linear(in_features, out_features)`` computed by ``in_splits`` x ``out_splits`` tiles.

    Each tile is a module made by ``linear_cls``; the last tile of a row has the bias.
    ``input_is_already_split``: forward takes the parts of the input.
    ``combine_out_splits=False``: it returns those of the output. ``init_linear`` provides the
    weights. Raises RuntimeError for more tiles than features, or none.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        in_splits: int = 1,
        out_splits: int = 1,
        input_is_already_split: bool = False,
        combine_out_splits: bool = True,
        linear_cls: Callable[..., nn.Module] = nn.Linear,
        init_linear: nn.Linear | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.use_bias = bias
        self.in_splits, self.out_splits = in_splits, out_splits
        self.input_is_already_split = input_is_already_split
        self.combine_out_splits = combine_out_splits
        self.in_parts = _parts(in_features, in_splits, "in_splits")
        self.out_parts = _parts(out_features, out_splits, "out_splits")
        columns, last = list(pairwise(self.in_parts)), in_splits - 1
        self.linears = nn.ModuleList(
            nn.ModuleList(
                linear_cls(right - left, bottom - top, bias=bias and index == last, **kwargs)
                for index, (left, right) in enumerate(columns)
            )
            for top, bottom in pairwise(self.out_parts)
        )
        if init_linear is not None:
            self.copy_params_from(init_linear)

    def forward(self, input_: Tensor | Sequence[Tensor]) -> Any:
        if isinstance(input_, Tensor):
            sizes = [right - left for left, right in pairwise(self.in_parts)]
            inputs: Sequence[Tensor] = input_.split(sizes, dim=-1)
        else:
            inputs = input_
        rows = [
            sum(tile(part) for tile, part in zip(row, inputs, strict=True)) for row in self._rows()
        ]
        return torch.cat(rows, dim=-1) if self.combine_out_splits else rows  # type: ignore[arg-type]

    @torch.no_grad()
    def copy_params_from(self, other: nn.Linear) -> None:
        """Copy the weights of ``other``, which must be unsharded; at stage 3 collective."""
        for row, (top, bottom) in zip(self._rows(), pairwise(self.out_parts), strict=True):
            for tile, (left, right) in zip(row, pairwise(self.in_parts), strict=True):
                with GatheredParameters(tile.parameters(), modifier_rank=0):
                    tile.weight.copy_(other.weight[top:bottom, left:right])
                    if tile.bias is not None:
                        tile.bias.copy_(other.bias[top:bottom])

    def _rows(self) -> list[Any]:
        return list(self.linears)


def _parts(features: int, splits: int, name: str) -> list[int]:
    """Return the boundaries of the parts; the first ones may be larger by one."""
    if not 1 <= splits <= features:
        raise RuntimeError(f"{name} is {splits}, but must be from 1 to {features}")
    return partition_uniform(features, splits)


z3_leaf_module = is_leaf


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    """Mark or unmark one module."""
    mark_leaf(model, flag)


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """Return the marked modules in ``model``."""
    return [module for module in model.modules() if is_leaf(module)]


def set_z3_leaf_modules(
    model: nn.Module,
    leaf_module_classes: Iterable[type[nn.Module] | str],
    raise_if_not_found: bool = True,
) -> list[nn.Module]:
    """Mark and return the modules of the given classes (or class names).

    Raises ValueError if there are none.
    """
    return _mark_classes(model, leaf_module_classes, True, raise_if_not_found)


def unset_z3_leaf_modules(
    model: nn.Module,
    leaf_module_classes: Iterable[type[nn.Module] | str],
    raise_if_not_found: bool = True,
) -> list[nn.Module]:
    """Unmark and return the modules of the given classes."""
    return _mark_classes(model, leaf_module_classes, False, raise_if_not_found)


def set_z3_leaf_modules_by_name(
    model: nn.Module,
    module_names: Iterable[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Mark the modules with these full names; return them, and the names not found."""
    return _mark_named(model, module_names, str.__eq__, flag, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(
    model: nn.Module,
    module_name_suffixes: Iterable[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Mark the modules whose full names have these suffixes; return them, and those not found."""
    return _mark_named(model, module_name_suffixes, str.endswith, flag, raise_if_not_found)


def _mark_classes(
    model: nn.Module, classes: Iterable[type[nn.Module] | str], flag: bool, required: bool
) -> list[nn.Module]:
    kinds = list(classes)
    modules = [
        module
        for module in model.modules()
        if any(
            is_of_class(module, kind) if isinstance(kind, str) else isinstance(module, kind)
            for kind in kinds
        )
    ]
    if not modules and required:
        raise ValueError(f"{type(model).__name__} has no module of the classes {kinds}")
    for module in modules:
        mark_leaf(module, flag)
    return modules


def _mark_named(
    model: nn.Module,
    patterns: Iterable[str],
    matches: Callable[[str, str], bool],
    flag: bool,
    required: bool,
) -> tuple[list[nn.Module], list[str]]:
    modules: dict[nn.Module, None] = {}
    missing: list[str] = []
    for pattern in patterns:
        matching = [module for name, module in model.named_modules() if matches(name, pattern)]
        modules |= dict.fromkeys(matching)
        if not matching:
            missing.append(pattern)
    if missing and required:
        raise ValueError(f"{type(model).__name__} has no modules named {missing}")
    for module in modules:
        mark_leaf(module, flag)
    return list(modules), missing
