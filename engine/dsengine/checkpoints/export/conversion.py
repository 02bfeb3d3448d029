"""Which in-memory tensors make up each tensor of a checkpoint.

[Note: provenance]
A conversion may rename tensors, split a stack of experts, concatenate projections, or merge
adapters; it is the library's own code, and works on many tensors at once. An export must not hold
them all. So the conversion runs once on tensors without data, while a dispatch mode records from
which inputs each storage was computed. Inputs that share an output are converted together, in a
``Component``, and nothing else has to be in memory at that time. A conversion can also require
tensors that an output does not depend on; such components are merged until each can be converted
alone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dsengine.torch_private.tensors import storage_key

Conversion = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Returns checkpoint tensors by name for in-memory tensors by name, tied ones under each name."""


class WeightMetadata(NamedTuple):
    """Name, dtype and full shape of an exported tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Component:
    """In-memory tensors ``sources`` that are converted together to ``outputs``.

    ``is_renaming``: the single output is the single source, under another name or the same.
    """

    sources: tuple[str, ...]
    outputs: tuple[WeightMetadata, ...]
    is_renaming: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all outputs."""
        return sum(output.nbytes for output in self.outputs)


def components_of(
    sources: Mapping[str, Tensor], aliases: Mapping[str, str], convert: Conversion
) -> list[Component]:
    """Divide a conversion into components, in the order of their first source.

    ``sources``: meta tensors. ``aliases``: their other names. Raises ValueError if the conversion
    cannot be divided.
    """
    inputs = with_aliases(sources, aliases)
    with _Provenance(sources) as provenance:
        outputs = convert(inputs)
    order = {name: position for position, name in enumerate(sources)}
    names_of = {
        name: sorted(provenance.of(tensor), key=order.__getitem__)
        for name, tensor in outputs.items()
    }
    components: list[Component] = []
    undivided: list[Component] = []
    for group in _connected(names_of.values()):
        members = sorted(group, key=order.__getitem__)
        results = {name: outputs[name] for name, own in names_of.items() if own[0] in group}
        component = _component(members, results)
        is_single = len(members) == len(results) == 1
        if is_single and sources[members[0]] is next(iter(results.values())):
            component = Component(component.sources, component.outputs, is_renaming=True)
        elif not _is_alone_sufficient(component, sources, aliases, convert):
            undivided.append(component)
            continue
        components.append(component)
    components += _merged(undivided, sources, aliases, convert)
    return sorted(components, key=lambda component: order[component.sources[0]])


def with_aliases(tensors: Mapping[str, Tensor], aliases: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the tensors under each of their names."""
    others = {name: tensors[first] for name, first in aliases.items() if first in tensors}
    return {**tensors, **others}


def _component(sources: Iterable[str], outputs: Mapping[str, Tensor]) -> Component:
    described = [WeightMetadata(name, t.dtype, tuple(t.shape)) for name, t in outputs.items()]
    return Component(tuple(sources), tuple(described))


def _is_alone_sufficient(
    component: Component,
    sources: Mapping[str, Tensor],
    aliases: Mapping[str, str],
    convert: Conversion,
) -> bool:
    """Whether the sources of ``component``, converted without others, give its outputs."""
    own = {name: sources[name].clone() for name in component.sources}
    try:
        outputs = convert(with_aliases(own, aliases))
    except (KeyError, ValueError, IndexError, RuntimeError):
        return False
    return set(_component((), outputs).outputs) == set(component.outputs)


def _merged(
    undivided: list[Component],
    sources: Mapping[str, Tensor],
    aliases: Mapping[str, str],
    convert: Conversion,
) -> list[Component]:
    """Merge components that need each other: those of one layer, or else all."""
    merged: list[Component] = []
    remaining = undivided
    for key in (_layer, lambda _: ""):
        by_key: dict[str, list[Component]] = {}
        for component in remaining:
            by_key.setdefault(key(component.sources[0]), []).append(component)
        remaining = []
        for group in by_key.values():
            joined = Component(
                tuple(name for each in group for name in each.sources),
                tuple(output for each in group for output in each.outputs),
            )
            if _is_alone_sufficient(joined, sources, aliases, convert):
                merged.append(joined)
            else:
                remaining += group
    if remaining:
        names = ", ".join(name for each in remaining for name in each.sources[:3])
        raise ValueError(
            f"the conversion to checkpoint names cannot be divided ({names}): pass names='module'"
        )
    return merged


def _layer(name: str) -> str:
    """Return the path up to the last number: that of a block."""
    parts = name.split(".")
    numbers = [position for position, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[-1] + 1]) if numbers else ""


def _connected(groups: Iterable[list[str]]) -> list[set[str]]:
    """Unite groups that have a member in common."""
    united: dict[str, set[str]] = {}
    for group in groups:
        whole = set(group).union(*(united.get(name, ()) for name in group))
        for name in whole:
            united[name] = whole
    return list({id(group): group for group in united.values()}.values())


class _Provenance(TorchDispatchMode):
    """Records from which of the given tensors each storage is computed."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._sources = {storage_key(tensor): {name} for name, tensor in tensors.items()}
        self._kept: list[Any] = []
        """Results, so that no storage is freed and its key used again."""

    def of(self, tensor: Tensor) -> set[str]:
        """Return the names of the tensors from which ``tensor`` is computed."""
        return self._sources.get(storage_key(tensor), set())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        names = set[str]().union(*map(self.of, given))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                key = storage_key(each)
                self._sources[key] = self._sources.get(key, set()) | names
        self._kept.append(result)
        return result
