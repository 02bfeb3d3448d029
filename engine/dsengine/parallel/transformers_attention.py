"""Sequence-parallel attention in the place of one of transformers' attention functions."""

from collections.abc import Callable, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple
from weakref import WeakSet, finalize, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsconfig import Plan
from dsengine.parallel.all_to_all import all_gather
from dsengine.parallel.attention import SequenceAttention
from dsengine.parallel.distributed_attention import DistributedAttention
from dsengine.topology import Topology

SUPPORTED = ("sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4")
"""Implementations whose masks are known over the whole sequence."""
RECURRENT = ("linear_attention", "mamba", "recurrent", "conv")
"""Types of layers that carry a state along the sequence."""


class _Registration(NamedTuple):
    """What transformers calls by one name while samples are divided, and what it called before."""

    functions: MutableMapping[str, Any]
    kind: str
    divided: Any
    original: Any

    def install(self) -> None:
        self.functions[self.kind] = self.divided

    def undo(self) -> None:
        if self.functions[self.kind] is self.divided:
            del self.functions[self.kind]  # transformers' own is below it
            if self.functions[self.kind] is not self.original:
                self.functions[self.kind] = self.original


_registrations: dict[str, tuple[_Registration, _Registration]] = {}
"""Attention and mask function by implementation, the last ones registered."""
_users: "WeakSet[object]" = WeakSet()
"""Models distributed with divided samples that are still in use."""


def register(
    model: Any,
    kind: str | None,
    group: dist.ProcessGroup,
    *,
    disable_in_eval: bool = False,
    parts: int = 1,
) -> SequenceAttention:
    """Replace transformers' attention function ``kind`` and its mask function; return the new one.

    Every model of this process that attends with ``kind`` uses them, until the last engine that
    divides samples is destroyed or freed.

    ``model``: a model, or the name or path of one. ``kind``: that of the model, or sdpa, if None.
    ``parts``: the ranks over which layers split the heads before.
    Raises ValueError for implementations, layers and numbers of heads that a sequence cannot be
    divided for.
    """
    # Transformers is not a requirement of this package.
    auto: Any = import_module("transformers").AutoConfig
    functions: Any = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    mask_functions: Any = import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
    is_loaded = hasattr(model, "config")
    config = (model.config if is_loaded else auto.from_pretrained(model)).get_text_config()
    kind = str(kind or getattr(config, "_attn_implementation", None) or "sdpa")
    if is_loaded:
        _refuse_other_kind(config, kind)
    if kind not in SUPPORTED or kind not in functions:
        raise ValueError(
            f"core_attn_implementation={kind!r} does not support sequence parallelism: use "
            "flash_attention_2 or sdpa"
        )
    _refuse_layers(config)
    if kind in _registrations:
        for earlier in _registrations[kind]:
            earlier.undo()
    heads = int(config.num_attention_heads) // parts
    attention = SequenceAttention(
        functions[kind],
        kind,
        group,
        heads,
        int(getattr(config, "num_key_value_heads", None) or heads * parts) // parts,
        disable_in_eval=disable_in_eval,
    )
    padding = _Padding(
        mask_functions[kind], group, ref(model) if is_loaded and disable_in_eval else None
    )
    _registrations[kind] = (
        _Registration(functions, kind, attention, functions[kind]),
        _Registration(mask_functions, kind, padding, mask_functions[kind]),
    )
    _install(kind)
    return attention


def divide_attention(model: nn.Module, plan: Plan, topology: Topology) -> None:
    """Register sequence-parallel attention for a model of transformers, unless a script has.

    Raises ValueError for other models without a ``DistributedAttention``: each rank would attend
    to its own part only.
    """
    kind = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if kind is None:
        divided = any(isinstance(module, DistributedAttention) for module in model.modules())
        if divided or not getattr(model, "attends", True):
            return
        raise ValueError(
            f"sequence_parallel_size {plan.mesh.sequence} divides samples over ranks, but this "
            "model attends within each part: call its attention through "
            "deepspeed.sequence.layer.DistributedAttention, or remove the key"
        )
    group = topology.group("sequence")
    known = _registrations.get(kind)
    if known is None or not _has_same_ranks(known[0].divided.group, group):
        register(model, kind, group, parts=plan.mesh.tensor)
    else:
        _install(kind)


def _has_same_ranks(one: dist.ProcessGroup, other: dist.ProcessGroup) -> bool:
    return dist.get_process_group_ranks(one) == dist.get_process_group_ranks(other)


def keep_attention(user: object) -> None:
    """Keep what is registered with transformers until ``user`` is released or freed."""
    _users.add(user)
    finalize(user, restore_if_unused).atexit = False


def release_attention(user: object) -> None:
    """Restore transformers' functions if ``user`` was the last that divides samples."""
    if user in _users:
        _users.discard(user)
        restore_if_unused()


def _install(kind: str) -> None:
    for registration in _registrations[kind]:
        registration.install()


def restore_if_unused() -> None:
    if not set(_users):
        for registrations in _registrations.values():
            for registration in registrations:
                registration.undo()


class _Padding:
    """Mask function that returns the padding of the whole sequence. [Note: masks over the whole
    sequence]

    ``local``: transformers' own, for a model in evaluation if ``model`` is given.
    """

    def __init__(
        self, local: Callable[..., Any], group: dist.ProcessGroup, model: "ref[Any] | None"
    ) -> None:
        self.local = local
        self._group = group
        self._model = model

    def __call__(self, *args: Any, **options: Any) -> Tensor | None:
        model = self._model and self._model()
        if model is not None and not model.training:
            return self.local(*args, **options)
        if options.get("use_vmap") or "or_mask" in getattr(
            options.get("mask_function"), "__qualname__", ""
        ):
            raise ValueError(
                "sequence parallelism supports causal, windowed, packed and padded attention, but "
                "this model attends in blocks of its own: use sequence_parallel_size 1"
            )
        padding = options.get("attention_mask")
        return None if padding is None else all_gather(padding.to(torch.uint8), self._group).bool()


def _refuse_other_kind(config: Any, kind: str) -> None:
    chosen = getattr(config, "_attn_implementation", None)  # pyright: ignore
    if chosen not in (None, kind):
        raise ValueError(
            f"the model uses attn_implementation={chosen!r}, but core_attn_implementation is "
            f"{kind!r}: set both to the same"
        )


def _refuse_layers(config: Any) -> None:
    """Raise ValueError for layers whose result depends on tokens of other ranks."""
    types = set(getattr(config, "layer_types", None) or ())
    divided = {name for name in types if any(part in name for part in RECURRENT)}
    divided |= types & {"chunked_attention"}
    if divided:
        raise ValueError(
            f"layers of type {', '.join(sorted(divided))} need the whole sequence on one rank: "
            "use sequence_parallel_size 1"
        )
