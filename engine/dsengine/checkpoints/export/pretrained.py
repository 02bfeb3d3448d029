"""Names and layout of weights as ``save_pretrained`` writes them, with adapters of peft merged.

[Note: merging without changing the model]
peft merges in place and subtracts the same product later, which does not restore every bit; under
ZeRO a layer may have only shards. So the layer is rebuilt from the same objects around full
tensors, and peft merges into these.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dsengine.checkpoints.export.conversion import Conversion
from dsengine.parameters.names import clean_name, named_persistent_buffers, own_parameters
from dsengine.torch_private.modules import children_of, persistent_buffers, rebuilt

Lora = Literal["merge", "adapter"]


def conversion_for(root: nn.Module, lora: Lora) -> Conversion:
    """Return the conversion of the tensors of ``root`` to those of its checkpoint.

    ``lora``: merge adapters of peft into the weights, or return only the adapter. Raises ValueError
    if there is no adapter to return, or one that cannot be merged.
    """
    if lora == "adapter":
        return lambda tensors: adapter_tensors(root, tensors)
    if not has_adapters(root):
        return lambda tensors: _as_saved(root, tensors)
    merge = AdapterMerge(root)
    return lambda tensors: _as_saved(merge.base, merge(tensors))


def _as_saved(model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that ``save_pretrained`` writes, or each tensor once for other models."""
    ignored = getattr(model, "_keys_to_ignore_on_save", None) or ()
    kept = {name: tensor for name, tensor in tensors.items() if name not in ignored}
    kept = _without_aliases(kept, getattr(model, "all_tied_weights_keys", None) or {})
    return _reverted(model, kept) if hasattr(model, "save_pretrained") else kept


def _without_aliases(tensors: dict[str, Tensor], tied: Mapping[str, str]) -> dict[str, Tensor]:
    """Return each tensor once, under a name that is not tied to another, or else its last one."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    kept = {
        next((name for name in each if name not in tied), sorted(each)[-1])
        for each in names.values()
    }
    return {name: tensor for name, tensor in tensors.items() if name in kept}


def _reverted(model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Undo the conversion with which ``from_pretrained`` loads a checkpoint."""
    try:
        loading: Any = import_module("transformers.core_model_loading")
    except ImportError:  # transformers 4 only renames, and only in some models
        if getattr(model, "_checkpoint_conversion_mapping", None):
            raise ValueError(
                f"the checkpoint names of {type(model).__name__} require transformers 5: update "
                "it, or pass names='module'"
            ) from None
        return tensors
    return loading.revert_weight_conversion(model, tensors)


def has_adapters(root: nn.Module) -> bool:
    """Whether ``root`` is a model of peft or has layers with adapters."""
    return hasattr(root, "peft_config") or next(_adapted_layers(root), None) is not None


def _adapted_layers(root: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the outermost modules that peft would replace when it unloads adapters."""
    inside: tuple[str, ...] = ()
    for name, module in root.named_modules():
        if name.startswith(inside):
            continue
        has_base = hasattr(module, "base_layer") and hasattr(module, "active_adapters")
        if hasattr(module, "unload_and_optionally_merge_module") or has_base:
            inside = (*inside, f"{name}.")
            yield clean_name(name), module


def _base_of(root: nn.Module) -> tuple[nn.Module, str]:
    """Return the model without adapters and its path in ``root``."""
    find: Any = getattr(root, "get_base_model", None)
    base = find() if find is not None and hasattr(root, "peft_config") else root
    return base, next(clean_name(name) for name, m in root.named_modules() if m is base)


class AdapterMerge:
    """Merges the active adapters of ``root`` layer by layer; ``root`` does not change.

    ``base``: the model without adapters. Raises ValueError for prompts and other adapters that are
    not part of a layer.
    """

    def __init__(self, root: nn.Module) -> None:
        self.base, path = _base_of(root)
        self._prefix = f"{path}." if path else ""
        self._layers = list(_adapted_layers(root))
        names = [clean_name(name) for name, _ in root.named_parameters()]
        outside = [name for name in names if not name.startswith(self._prefix)]
        if outside:
            raise ValueError(
                f"{outside[0]} is part of an adapter that cannot be merged into the weights: pass "
                "names='module'"
            )

    def __call__(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of the base model by its names; may write to ``tensors``.

        Layers without any tensor are skipped.
        """
        merged = dict(tensors)
        for path, layer in self._layers:
            names = [name for name in merged if name.startswith(f"{path}.")]
            if names:
                own = {name.removeprefix(f"{path}."): merged.pop(name) for name in names}
                kept = {id(tensor) for tensor in merged.values()}
                # A weight that other layers share is merged only here.
                own = {name: t.clone() if id(t) in kept else t for name, t in own.items()}
                merged |= {f"{path}.{name}": t for name, t in _merged_layer(layer, own).items()}
        return {name.removeprefix(self._prefix): tensor for name, tensor in merged.items()}


@torch.no_grad()
def _merged_layer(layer: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the module that replaces ``layer`` when its adapters are merged."""
    own = _rebuilt(layer, "", tensors)
    if hasattr(own, "unload_and_optionally_merge_module"):
        unloaded = own.unload_and_optionally_merge_module(
            merge=True, safe_merge=False, adapter_names=None
        )
    else:
        own.merge(safe_merge=False, adapter_names=None)
        unloaded = own.get_base_layer()
    parameters = {
        f"{prefix}.{name}" if prefix else name: parameter.data
        for prefix, module in unloaded.named_modules()
        for name, parameter in own_parameters(module)
    }
    return parameters | dict(named_persistent_buffers(unloaded))


def _rebuilt(module: nn.Module, prefix: str, tensors: Mapping[str, Tensor]) -> Any:
    """Return ``module`` around other tensors; parameters without one have no data.

    ``tensors``: by name below the layer.
    """
    return rebuilt(
        module,
        parameters={
            name: _parameter(tensors.get(prefix + name), parameter)
            for name, parameter in own_parameters(module)
        },
        buffers={
            name: tensors[prefix + name]
            for name, _ in persistent_buffers(module)
            if prefix + name in tensors
        },
        children={
            name: _rebuilt(child, f"{prefix}{name}.", tensors)
            for name, child in children_of(module)
        },
    )


def _parameter(tensor: Tensor | None, like: Tensor) -> nn.Parameter:
    if tensor is None:
        tensor = torch.empty(like.shape, dtype=like.dtype, device="meta")
    return nn.Parameter(tensor, requires_grad=False)


def adapter_tensors(root: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the active adapter, by the names of peft's ``save_pretrained``.

    Raises ValueError if there is no adapter, more than one is active, or it is a learned prompt,
    which peft computes when it saves it.
    """
    if not hasattr(root, "peft_config"):
        raise ValueError("lora='adapter': the model has no adapter of peft")

    active: Any = root.active_adapters
    active = active() if callable(active) else active
    if len(active) != 1:
        raise ValueError(f"lora='adapter': {len(active)} adapters are active, expected one")
    if root.peft_config[active[0]].is_prompt_learning:
        raise ValueError("lora='adapter': the adapter is a learned prompt: pass names='module'")
    own = import_module("peft").get_peft_model_state_dict(
        root, dict(tensors), adapter_name=active[0]
    )
    prefix = "" if hasattr(root, "get_base_model") else "base_model.model."
    return {prefix + name: tensor for name, tensor in own.items()}
