"""Names and layout of weights as ``save_pretrained`` writes them."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

from torch import Tensor, nn

from dsengine.checkpoints.export.adapters import AdapterMerge, adapter_tensors, has_adapters
from dsengine.checkpoints.export.conversion import Conversion

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
