"""Refusing weights that were not loaded or not initialized, before they are trained."""

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dsengine.checkpoints import CheckpointError
from dsengine.checkpoints.export.conversion import components_of
from dsengine.checkpoints.export.full_weights import (
    SAFETENSORS_NAME,
    read_tensor,
    weight_files,
    weight_shapes,
)
from dsengine.checkpoints.export.pretrained import conversion_for
from dsengine.sharding.zero.partitioned import is_partitioned_parameter
from dsengine.sharding.zero.uninitialized import expects_checkpoint, has_value, uninitialized

ALLOW = "DSENGINE_ALLOW_UNLOADED"
"""The environment variable that accepts any weights, if it is 1."""
LISTED = 5


def refuse_unloaded_weights(model: nn.Module) -> None:
    """Raise ValueError for weights on the meta device, uninitialized ones, and ones not loaded.

    Not loaded: a parameter built under ``zero.Init`` that ``from_pretrained`` has not set, although
    the checkpoint contains its tensors. A weight that the checkpoint does not contain is accepted
    once it is initialized, as transformers does with the head of a classifier.
    """
    if os.environ.get(ALLOW) == "1":
        return
    empty = [name for name, p in model.named_parameters() if p.is_meta]
    if empty:
        raise ValueError(
            f"{_some(empty)} on the meta device, without values: load or initialize the model first"
        )
    skipped = [name for root in _pretrained(model) for name in _not_loaded(*root)]
    if skipped:
        raise ValueError(
            f"{_some(skipped)} in the checkpoint, but at stage 3 from_pretrained did not load them "
            "and gave them other values: use another release of transformers, or stage 2 "
            f"(`dsconfig validate --model` lists known faults), or set {ALLOW}=1 to train them as "
            "they are"
        )
    unset = uninitialized(model)
    if unset:
        raise ValueError(
            f"{_some(unset)} not initialized: neither the checkpoint nor the model sets the values "
            "(zero.Init fills new memory with NaN). Set them inside deepspeed.zero."
            f"GatheredParameters(..., modifier_rank=0), or set {ALLOW}=1 to train with NaN"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    listed = f"{', '.join(names[:LISTED])}{more}"
    return f"1 weight, {listed}, is" if len(names) == 1 else f"{len(names)} weights, {listed}, are"


def _pretrained(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Return the outermost models of transformers in ``model``, with their names."""
    found: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{each}.") or not each for each in found)
        if not inside and hasattr(module, "_load_pretrained_model"):
            found.append(name)
            yield name, module


def _not_loaded(prefix: str, model: Any) -> list[str]:
    parameters = {n: p for n, p in model.named_parameters() if is_partitioned_parameter(p)}
    missing = {
        name
        for name, parameter in parameters.items()
        if expects_checkpoint(parameter) and not getattr(parameter, "_is_hf_initialized", False)
    }
    if not missing:
        return []
    shapes = _checkpoint_shapes(model)
    if not shapes:
        return []
    sources = {n: torch.empty_like(p, device="meta") for n, p in parameters.items()}
    try:
        components = components_of(
            sources, _aliases(model, sources), conversion_for(model, "merge")
        )
    except ValueError:  # names that cannot be converted back
        return []
    suspects = [
        component
        for component in components
        if missing.intersection(component.sources)
        and any(shapes.get(output.name) == [*output.shape] for output in component.outputs)
    ]
    renamed = sorted((each for each in suspects if each.is_renaming), key=lambda each: -each.nbytes)
    compared = [_was_loaded(model, each.sources[0], each.outputs[0].name) for each in renamed[:3]]
    if compared and all(compared):
        return []  # by a release of transformers that does not mark loaded weights
    skipped = missing & {name for each in suspects for name in each.sources}
    return [f"{prefix}.{n}" if prefix else n for n in parameters if n in skipped]


def _was_loaded(model: Any, name: str, in_checkpoint: str) -> bool:
    """Whether this rank's shard of parameter ``name`` is that of the checkpoint's tensor."""
    source = _folder(model)
    prefix = f"{model.base_model_prefix}."
    files = {} if source is None else weight_files(source)
    names = (in_checkpoint, in_checkpoint.removeprefix(prefix), prefix + in_checkpoint)
    known = next((each for each in names if each in files), None)
    if known is None:
        return False
    return has_value(model.get_parameter(name), read_tensor(files[known], known))


def _aliases(model: nn.Module, sources: Mapping[str, Any]) -> dict[str, str]:
    first = {id(p): name for name, p in model.named_parameters()}
    named = model.named_parameters(remove_duplicate=False)
    found = {name: first[id(p)] for name, p in named if first[id(p)] != name}
    return {name: source for name, source in found.items() if source in sources}


def _checkpoint_shapes(model: Any) -> dict[str, list[int]]:
    """Return the shapes by name of the checkpoint that ``model`` was loaded from, if it is here.

    Under each name also without and with the prefix of the base model, which transformers accepts.
    """
    folder = _folder(model)
    if folder is None:
        return {}
    try:
        shapes = weight_shapes(folder)
    except CheckpointError:
        return {}
    prefix = f"{model.base_model_prefix}."
    other = {n.removeprefix(prefix) if n.startswith(prefix) else prefix + n: n for n in shapes}
    return {**{name: shapes[n] for name, n in other.items()}, **shapes}


def _folder(model: Any) -> Path | None:
    """Return the folder with the weights of a local model, or one in the cache of the hub."""
    name = str(getattr(model.config, "_name_or_path", ""))
    if not name or Path(name).is_dir():
        return Path(name) if name else None
    try:
        hub = import_module("huggingface_hub")
        names = (f"{SAFETENSORS_NAME}.index.json", SAFETENSORS_NAME)
        paths = [hub.try_to_load_from_cache(name, file) for file in names]
    except (ImportError, ValueError):  # not the name of a repository
        return None
    return next((Path(path).parent for path in paths if isinstance(path, str)), None)
