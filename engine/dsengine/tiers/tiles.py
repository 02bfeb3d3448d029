"""Dividing an optimizer's parameters into tiles that are updated one after the other."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Tile:
    """Whole parameters by name; ``elements`` are those of this rank's parts."""

    names: tuple[str, ...]
    elements: int


def divide_into_tiles(sizes: Mapping[str, int], tile_elements: int) -> list[Tile]:
    """Fill tiles in order; a larger parameter is a tile by itself."""
    tiles: list[Tile] = []
    names: list[str] = []
    held = 0
    for name, size in sizes.items():
        if names and held + size > tile_elements:
            tiles.append(Tile(tuple(names), held))
            names, held = [], 0
        names.append(name)
        held += size
    if names:
        tiles.append(Tile(tuple(names), held))
    return tiles


def host_share(tiles: list[Tile], ratio: float) -> tuple[list[Tile], list[Tile]]:
    """Return (tiles on the device, tiles on the host): the first ``1 - ratio`` stay.

    As in DeepSpeed it is whole tiles that stay, so a ratio needs several of them.
    """
    stay = int(len(tiles) * (1.0 - ratio))
    return tiles[:stay], tiles[stay:]


@contextmanager
def stepping_only(optimizer: Optimizer, parameters: list[nn.Parameter]) -> Iterator[None]:
    """Let ``optimizer.step`` see only ``parameters``; groups keep their options."""
    wanted = {id(parameter) for parameter in parameters}
    whole = [group["params"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"] = [each for each in group["params"] if id(each) in wanted]
    try:
        yield
    finally:
        for group, params in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = params


def state_entries(state: Mapping[str, object], parameter: Tensor) -> list[str]:
    """Return the names of the state tensors that have an element for each of the parameter's."""
    return [
        name
        for name, value in state.items()
        if isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape
    ]
