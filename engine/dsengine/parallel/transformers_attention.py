"""Sequence-parallel attention in the place of one of transformers' attention functions."""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from weakref import WeakSet, finalize, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsconfig import Plan
from dsconfig.features.table import FEATURES
from dsengine.parallel.all_to_all import all_gather
from dsengine.parallel.attention import SequenceAttention
from dsengine.parallel.distributed_attention import DistributedAttention
from dsengine.parallel.divisible import refuse_config, refuse_model
from dsengine.topology import Topology

SUPPORTED = ("sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4")
"""Implementations whose masks are known over the whole sequence."""


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


class _Marked(NamedTuple):
    """A module or config, and what divides the samples of its model; None: these are whole."""

    part: ref[Any]
    user: ref[object] | None


_registrations: dict[str, tuple[_Registration, _Registration]] = {}
"""Attention and mask function by implementation, the last ones registered."""
_by_engines: set[str] = set()
"""The implementations that no script has registered; forgotten when they are restored."""
_users = WeakSet[object]()
"""What divides samples and is still in use."""
_marked: "dict[int, _Marked]" = {}
"""Modules and configs of the models that were distributed, by identity."""


def register(
    model: Any,
    kind: str | None,
    group: dist.ProcessGroup,
    *,
    disable_in_eval: bool = False,
    parts: int = 1,
) -> SequenceAttention:
    """Replace transformers' attention function ``kind`` and its mask function; return the new one.

    Every model of this process that attends with ``kind`` calls them, until the last engine that
    divides samples is destroyed or freed. A model whose samples are whole gets transformers' own.

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
        refuse_model(model, kind)
    if kind not in SUPPORTED or kind not in functions:
        raise ValueError(f"core_attn_implementation={kind!r}: {FEATURES['other_attention'].text}")
    refuse_config(config, group.size(), parts)
    if kind in _registrations:
        for earlier in _registrations[kind]:
            earlier.undo()
    attention = SequenceAttention(
        functions[kind], kind, group, _is_whole, disable_in_eval=disable_in_eval
    )
    padding = _Padding(
        mask_functions[kind], group, ref(model) if is_loaded and disable_in_eval else None
    )
    _by_engines.discard(kind)
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
        _by_engines.add(kind)
    else:
        refuse_model(model, kind)
        config: Any = model.config
        refuse_config(config.get_text_config(), group.size(), plan.mesh.tensor)
        _install(kind)


def registered(model: Any) -> SequenceAttention | None:
    """Return the function that attention of ``model`` calls; None for models of other kinds."""
    kind = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return _registrations[kind][0].divided if kind in _registrations else None


def _has_same_ranks(one: dist.ProcessGroup, other: dist.ProcessGroup) -> bool:
    return dist.get_process_group_ranks(one) == dist.get_process_group_ranks(other)


class _Distributing:
    """Uses what is registered until a model has been distributed."""


@contextmanager
def being_divided() -> Iterator[None]:
    """Inside, keep what is registered, although engines of earlier models are freed."""
    user = _Distributing()
    _users.add(user)
    try:
        yield
    finally:
        release_attention(user)


def keep_attention(user: object) -> None:
    """Keep what is registered with transformers until ``user`` is released or freed."""
    _users.add(user)
    finalize(user, restore_if_unused).atexit = False


def keeps_attention(user: object) -> bool:
    """Return whether ``user`` still divides samples."""
    return user in _users


def release_attention(user: object) -> None:
    """Restore transformers' functions if ``user`` was the last that divides samples."""
    if user in _users:
        _users.discard(user)
        restore_if_unused()


def mark(model: nn.Module, user: object | None) -> None:
    """Record that ``user`` divides the samples of ``model``; None: these are whole, and attention
    and masks of the model stay transformers' own."""
    divides = None if user is None else ref(user)

    def record(part: Any) -> None:
        key = id(part)

        def forget(_: Any, marked: Any = _marked) -> None:  # the global is gone at exit
            marked.pop(key, None)

        _marked[key] = _Marked(ref(part, forget), divides)

    for module in model.modules():
        record(module)
        config = vars(module).get("config")
        if hasattr(config, "get_text_config"):  # of transformers, which builds masks for it
            record(config)


def _is_whole(part: Any) -> bool:
    """Return whether the model of a module or config ``part`` has whole samples.

    Raises ValueError for a model without an engine: its samples may be parts or whole.
    """
    found = _marked.get(id(part))
    if found is None or (found.user is not None and found.user() not in _users):
        raise ValueError(
            f"{type(part).__name__} belongs to a model without an engine, while another engine "
            "divides sequences: pass the model to initialize() too, with or without "
            "sequence_parallel_size"
        )
    return found.user is None


def _install(kind: str) -> None:
    for registration in _registrations[kind]:
        registration.install()


def restore_if_unused() -> None:
    """Restore transformers' functions if nothing divides samples."""
    if not set(_users):
        for registrations in _registrations.values():
            for registration in registrations:
                registration.undo()
        for kind in _by_engines:
            _registrations.pop(kind, None)
        _by_engines.clear()


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
        config = options.get("config")
        is_whole = config is not None and _is_whole(config)
        if is_whole or (model is not None and not model.training):
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
