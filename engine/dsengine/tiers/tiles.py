"""Division of an optimizer's parameters into tiles that are updated one after the other.

[Note: pieces]
Offloaded optimizers are elementwise, so a tile need not contain full parameters: tiles are equal
except for the last, whatever the parameter sizes, which bounds the host memory for one. While a
tile is updated, the optimizer's groups contain its pieces instead of the parameters. A piece has
views of per-element states and copies of the others (the step count): all pieces of a parameter
start from the same ones, and those of its last piece are kept.
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
    """Elements ``start`` to ``stop`` of this rank's part of parameter ``name``.

    ``last``: it is the part's last piece.
    """

    name: str
    start: int
    stop: int
    last: bool

    @property
    def elements(self) -> int:
        return self.stop - self.start

    def of(self, part: Tensor) -> Tensor:
        """Return a flat view of this piece of ``part``, or of a tensor of the same shape."""
        return part.view(-1)[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class Tile:
    """Pieces of different parameters that are updated together."""

    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> int:
        return sum(piece.elements for piece in self.pieces)


def divide_into_tiles(sizes: Mapping[str, int], tile_elements: int) -> list[Tile]:
    """Return tiles filled in order; a parameter may span several."""
    tiles: list[Tile] = []
    pieces: list[Piece] = []
    remaining = tile_elements
    for name, size in sizes.items():
        start = 0
        while True:
            stop = min(size, start + remaining)
            pieces.append(Piece(name, start, stop, last=stop == size))
            remaining -= stop - start
            start = stop
            if start == size:
                break
            tiles.append(Tile(tuple(pieces)))
            pieces, remaining = [], tile_elements
    return [*tiles, Tile(tuple(pieces))] if pieces else tiles


def split_pieces(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    """Yield the pieces in order, in lists of at most ``most`` elements."""
    batch: list[Piece] = []
    remaining = most
    for piece in pieces:
        start = piece.start
        while piece.stop - start > remaining:
            batch.append(Piece(piece.name, start, start + remaining, last=False))
            yield batch
            start, batch, remaining = start + remaining, [], most
        batch.append(Piece(piece.name, start, piece.stop, last=piece.last))
        remaining -= piece.stop - start
        if not remaining:
            yield batch
            batch, remaining = [], most
    if batch:
        yield batch


@contextmanager
def stepping_pieces(
    optimizer: Optimizer, pieces: Mapping[nn.Parameter, nn.Parameter]
) -> Iterator[None]:
    """Make ``optimizer.step`` see only ``pieces`` instead of their parameters.

    Groups keep their options, except that on the host torch's fused kernels are used unless another
    implementation is requested: they read and write each state once.
    """
    on_host = all(piece.device.type == "cpu" for piece in pieces.values())
    fuses = on_host and _is_fused_on_host(type(optimizer))
    before = [(group, group["params"], group.get("fused")) for group in optimizer.param_groups]
    for group, parameters, _ in before:
        group["params"] = [pieces[parameter] for parameter in parameters if parameter in pieces]
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
    names = (f"torch.{base.__name__}" for base in kind.__mro__)
    known = next((OPTIMIZER_CLASSES[name] for name in names if name in OPTIMIZER_CLASSES), None)
    return known is not None and known.is_torch_fused_on("cpu")


def _leaves_choice(group: Mapping[str, Any]) -> bool:
    implementations = ("fused", "foreach", "differentiable", "capturable")
    return "fused" in group and not any(group.get(name) for name in implementations)


def states_per_element(optimizer: Optimizer) -> list[str]:
    """Return the names of the per-element states of this optimizer, in any group."""
    names: dict[str, None] = {}
    for group in optimizer.param_groups:
        states = {parameter: optimizer.state.get(parameter) for parameter in group["params"]}
        existing = {parameter: state for parameter, state in states.items() if state}
        for parameter, state in (existing or _first_states(optimizer, group)).items():
            names.update(dict.fromkeys(state_entries(state, parameter)))
    return [*names]


@torch.no_grad()
def _first_states(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[Tensor, Any]:
    """Return the states of a one-element parameter after a first step with ``group``'s options."""
    probe = nn.Parameter(torch.zeros(1))
    probe.grad = torch.zeros(1)
    trial = copy(optimizer)
    trial.state = defaultdict(dict)
    trial.param_groups = [{**group, "params": [probe]}]
    # Bypass wrappers that users and schedules put around ``step``.
    unwrap(type(optimizer).step)(trial)
    return dict(trial.state)


def state_entries(state: Mapping[str, object], parameter: Tensor) -> list[str]:
    """Return the names of state tensors with the parameter's shape."""
    return [
        name
        for name, value in state.items()
        if isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape
    ]
