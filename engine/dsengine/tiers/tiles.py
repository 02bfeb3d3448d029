"""Dividing an optimizer's parameters into tiles that are updated one after the other.

[Note: pieces]
Optimizers that are offloaded treat each element alone, so a tile need not hold whole parameters:
tiles are equal but for the last, whatever the sizes of parameters are, and what visits host
memory for one is bounded by that. While a tile is updated the optimizer's groups hold its pieces
in the place of the parameters. A piece has views of the states that are kept for each element,
and copies of those that count for all of them (the number of the step): all pieces of a parameter
start from the same ones, and its last one's are kept.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dsconfig import OPTIMIZER_CLASSES


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements ``start`` to ``stop`` of this rank's part of parameter ``name``; ``last`` of it."""

    name: str
    start: int
    stop: int
    last: bool

    @property
    def elements(self) -> int:
        return self.stop - self.start

    def of(self, part: Tensor) -> Tensor:
        """Return a flat view of this piece of ``part``, or of a tensor of its shape."""
        return part.view(-1)[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class Tile:
    """What is updated at a time: pieces of different parameters."""

    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> int:
        return sum(piece.elements for piece in self.pieces)


def divide_into_tiles(sizes: Mapping[str, int], tile_elements: int) -> list[Tile]:
    """Fill tiles in order; a parameter may begin in one and end in another."""
    tiles: list[Tile] = []
    pieces: list[Piece] = []
    room = tile_elements
    for name, size in sizes.items():
        start = 0
        while True:
            stop = min(size, start + room)
            pieces.append(Piece(name, start, stop, last=stop == size))
            room -= stop - start
            start = stop
            if start == size:
                break
            tiles.append(Tile(tuple(pieces)))
            pieces, room = [], tile_elements
    return [*tiles, Tile(tuple(pieces))] if pieces else tiles


def in_parts(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    """Yield the pieces, in order, no more than ``most`` elements at a time."""
    taken: list[Piece] = []
    room = most
    for piece in pieces:
        start = piece.start
        while piece.stop - start > room:
            taken.append(Piece(piece.name, start, start + room, last=False))
            yield taken
            start, taken, room = start + room, [], most
        taken.append(Piece(piece.name, start, piece.stop, last=piece.last))
        room -= piece.stop - start
        if not room:
            yield taken
            taken, room = [], most
    if taken:
        yield taken


@contextmanager
def stepping_pieces(
    optimizer: Optimizer, pieces: Mapping[nn.Parameter, nn.Parameter]
) -> Iterator[None]:
    """Let ``optimizer.step`` see only ``pieces``, each in the place of its parameter.

    Groups keep their options, but for one: on the host torch's fused kernels run wherever no
    other implementation is asked for. They read and write each state once.
    """
    on_host = all(piece.device.type == "cpu" for piece in pieces.values())
    fuses = on_host and _is_fused_on_host(type(optimizer))
    before = [(group, group["params"], group.get("fused")) for group in optimizer.param_groups]
    for group, parameters, _ in before:
        group["params"] = [pieces[each] for each in parameters if each in pieces]
        if fuses and _leaves_choice(group):
            group["fused"] = True
    try:
        yield
    finally:
        for group, parameters, chosen in before:
            group["params"] = parameters
            if "fused" in group:
                group["fused"] = chosen


def _is_fused_on_host(kind: type[Optimizer]) -> bool:
    names = (f"torch.{each.__name__}" for each in kind.__mro__)
    known = next((OPTIMIZER_CLASSES[name] for name in names if name in OPTIMIZER_CLASSES), None)
    return known is not None and known.is_torch_fused_on("cpu")


def _leaves_choice(group: Mapping[str, Any]) -> bool:
    chosen = ("fused", "foreach", "differentiable", "capturable")
    return "fused" in group and not any(group.get(each) for each in chosen)


def states_per_element(optimizer: Optimizer) -> list[str]:
    """Return the names of the states that this optimizer keeps for each element, in any group."""
    found: dict[str, None] = {}
    for group in optimizer.param_groups:
        states = {each: optimizer.state.get(each) for each in group["params"]}
        begun = {each: state for each, state in states.items() if state}
        for parameter, state in (begun or _first_states(optimizer, group)).items():
            found.update(dict.fromkeys(state_entries(state, parameter)))
    return [*found]


@torch.no_grad()
def _first_states(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[Tensor, Any]:
    """What a first step with the options of ``group`` leaves for a parameter of one element."""
    probe = nn.Parameter(torch.zeros(1))
    probe.grad = torch.zeros(1)
    trial = copy(optimizer)
    trial.state = defaultdict(dict)
    trial.param_groups = [{**group, "params": [probe]}]
    # Without what users and schedules have hung on ``step``.
    unwrap(type(optimizer).step)(trial)
    return dict(trial.state)


def state_entries(state: Mapping[str, object], parameter: Tensor) -> list[str]:
    """Return the names of the state tensors that have an element for each of the parameter's."""
    return [
        name
        for name, value in state.items()
        if isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape
    ]
