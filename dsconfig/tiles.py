"""Tiles of an offloaded optimizer: how much of its states is updated at a time, and where.

Pure arithmetic, used by the engine, which moves the tiles, and by the estimate, which counts them.
Sizes are elements of one rank. Beside them the most that the engine sends at a time.
"""

from collections.abc import Mapping
from typing import TypeVar

STAGING_BYTES = 256 * 2**20
"""The most that one buffer between two tiers holds."""
PIECE_BYTES = 32 * 2**20
"""Of what travels between device and host at a time, in a page-locked buffer."""
BROADCAST_BYTES = 256 * 2**20
"""The most that one flattened broadcast holds."""
PACKED_BELOW = 2**20
"""Bytes of a whole parameter below which it is gathered together with others."""
PIECES = STAGING_BYTES // PIECE_BYTES
ELEMENT_BYTES = 4
"""All states are fp32."""
PAGE_ELEMENTS = 1024
"""What direct access to a file counts in."""
FEWEST_BUFFERS = 2
"""One tile is updated while the last is written and the next is read."""

Name = TypeVar("Name")


def host_share(sizes: Mapping[Name, int], ratio: float) -> tuple[dict[Name, int], dict[Name, int]]:
    """Return (sizes on the device, on the host): the first ``1 - ratio`` of the elements stay.

    A parameter is updated in one place: the one that would pass the share is the first to go.
    """
    room = sum(sizes.values()) * (1.0 - ratio)
    stay: dict[Name, int] = {}
    for name, size in sizes.items():
        room -= size
        if room < 0:
            break
        stay[name] = size
    return stay, {name: size for name, size in sizes.items() if name not in stay}


def tile_elements(sub_group_size: int, segments: int = 1) -> int:
    """Return the most elements of a tile whose ``segments`` (weights, each moment) move."""
    return max(1, min(sub_group_size, STAGING_BYTES // (ELEMENT_BYTES * segments)))


def filed_tile_elements(sub_group_size: int, segments: int) -> int:
    """Return the same of a tile in a file, where it begins and ends with a page."""
    most = tile_elements(sub_group_size, segments)
    return max(PAGE_ELEMENTS, most - most % PAGE_ELEMENTS)


def buffers(buffer_count: int, segments: int, tiles: int) -> int:
    """Return how many tiles are in memory; ``buffer_count`` counts tensors, gradients among them.

    A tile is read into the buffer that another has been written from.
    """
    return min(max(FEWEST_BUFFERS, buffer_count // (segments + 1)), max(1, tiles))
