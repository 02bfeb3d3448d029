"""What the ranks of a group agree on before a forward that they compute together.

[Note: contract of a forward]
Ranks that split layers need the same inputs; ranks that divide sequences need parts of the same
shapes. Before anything else of a forward communicates, they exchange four integers: whether this
rank has found a fault, and digests of the names and shapes of its inputs, of their values, and of
its random state. A difference is one ValueError on all ranks of the group. Only random states are
made equal instead, to that of the first rank: the ranks that split layers compute dropout in whole
layers and sampled tokens alike. They draw alike in split layers too, each for its own part.
"""

import inspect
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from dsengine.torch_private.dry_runs import is_fake

CACHE = "past_key_values"
"""Argument with the state of a rank's own layers."""
REMEDIES = {
    "tensor": "they split layers, so give them the same samples: use the loader of "
    "initialize(training_data=...), or engine.deepspeed_io()",
    "sequence": "they divide sequences, so give them parts of the same shapes: pad sequences to a "
    "multiple of the ranks",
}
PIECE = 2**16
"""Values of which a digest is computed at a time: memory does not grow with the inputs."""
_FACTOR = -7046029254386353131
Arguments = Mapping[str, Any]


class ForwardContract:
    """Compares the arguments of forwards in a group of ranks along ``axis``.

    ``fault``: returns what is wrong with a rank's own arguments; "" for nothing.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        axis: Literal["tensor", "sequence"],
        device: torch.device,
        fault: Callable[[Arguments], str] | None = None,
    ) -> None:
        self._group, self._axis, self._device, self._fault = group, axis, device, fault

    def check(self, arguments: Arguments, *, training: bool) -> None:
        """Raise ValueError on every rank of the group if one of them cannot compute this forward.

        Collective over the group.
        """
        own = torch.zeros(4, dtype=torch.int64, device=self._device)
        if is_fake(own):  # a dry run
            return
        fault, leaves = self._fault(arguments) if self._fault else "", _leaves(arguments)
        shapes = {name: _shape(value) for name, value in leaves.items()}
        shapes["training"] = str(training)
        own[0], own[1] = fault != "", zlib.crc32(repr(sorted(shapes.items())).encode())
        if self._axis == "tensor":
            own[2] = _digest_of_all(leaves, self._device)
            own[3] = _digest_of_all(_random_states(self._device), self._device)
        found = [torch.empty_like(own) for _ in range(self._group.size())]
        dist.all_gather(found, own, group=self._group)
        ranks: list[list[int]] = torch.stack(found).tolist()
        if any(rank[0] or rank[:3] != ranks[0][:3] for rank in ranks):
            self._refuse(fault, shapes, leaves)
        if any(rank != ranks[0] for rank in ranks):
            self._share_random_states()

    def _refuse(self, fault: str, shapes: dict[str, str], leaves: dict[str, Any]) -> None:
        """Raise ValueError that names ranks and what differs. Collective."""
        if self._axis == "tensor":
            digests = {n: int(_digest(v)) for n, v in leaves.items() if _has_same_values(n, v)}
        else:
            digests = dict[str, int]()
        gathered: list[Any] = [None] * self._group.size()
        dist.all_gather_object(gathered, (fault, shapes, digests), group=self._group)
        ranks = dist.get_process_group_ranks(self._group)
        faults = {rank: each[0] for rank, each in zip(ranks, gathered, strict=True)}
        for rank, text in faults.items():
            if text:
                raise ValueError(text if all(faults.values()) else f"rank {rank}: {text}")
        _, first, values = gathered[0]
        for rank, (_, other, others) in zip(ranks, gathered, strict=True):
            differing = [
                f"{name} is {other.get(name, 'missing')} on rank {rank}, but "
                f"{first.get(name, 'missing')} on rank {ranks[0]}"
                for name in sorted(first.keys() | other.keys())
                if first.get(name) != other.get(name)
            ] or [
                f"{name} has other values on rank {rank} than on rank {ranks[0]}"
                for name in values
                if values[name] != others.get(name)
            ]
            if differing:
                raise ValueError(
                    f"ranks {', '.join(map(str, ranks))} compute one forward, but "
                    f"{'; '.join(differing[:3])}: {REMEDIES[self._axis]}"
                )

    def _share_random_states(self) -> None:
        """Continue with the random state of the group's first rank. Collective."""
        states: list[Any] = [_random_states(self._device)]
        dist.broadcast_object_list(states, group=self._group, group_src=0)
        torch.set_rng_state(states[0]["cpu"])
        if "cuda" in states[0]:
            torch.cuda.set_rng_state(states[0]["cuda"], self._device)


def named_arguments(module: nn.Module, args: Any, kwargs: Arguments) -> dict[str, Any]:
    """Return the arguments of a forward of ``module`` that are not None, by name."""
    named = dict[str, Any]()
    try:
        bound = inspect.signature(module.forward).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        named = {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
    else:
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            named |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return {name: value for name, value in named.items() if value is not None}


def _leaves(arguments: Arguments) -> dict[str, Any]:
    pairs, _ = tree_flatten_with_path(dict(arguments))
    return {keystr(path)[2:-2] if len(path) == 1 else keystr(path): leaf for path, leaf in pairs}


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def _has_same_values(name: str, value: Any) -> bool:
    """Whether ranks that split layers have the same ``value``: tensors that are whole."""
    return isinstance(value, Tensor) and not isinstance(value, DTensor) and CACHE not in name


def _digest_of_all(leaves: Arguments, device: torch.device) -> Tensor | int:
    digests = [_digest(v).to(device) for n, v in leaves.items() if _has_same_values(n, v)]
    return _digest(torch.stack(digests)) if digests else 0


def _digest(tensor: Tensor) -> Tensor:
    """Return an integer that differs, almost certainly, for tensors with other bits."""
    flat = tensor.detach().contiguous().flatten()
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).flatten()
    if flat.dtype is torch.bool or flat.dtype.is_floating_point:
        sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        flat = flat.view(sizes[flat.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for piece in flat.split(PIECE):
        total = (
            total * _FACTOR
            + ((piece.to(torch.int64) + 1) * _factors(flat.device)[: len(piece)]).sum()
        )
    return total


@cache
def _factors(device: torch.device) -> Tensor:
    """Return ``PIECE`` odd integers without a pattern."""
    mixed = torch.arange(1, PIECE + 1, device=device) * _FACTOR
    mixed ^= mixed >> 29
    return mixed * -4658895280553007687 | 1


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
