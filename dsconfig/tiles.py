"""Tiles of an offloaded optimizer: how much of its states is updated at a time, and where.

Pure arithmetic, shared by the engine, which moves the tiles, and the estimate, which counts them.
Sizes are elements of one rank. Also the maximum sizes of transfers and masks.
"""

from collections.abc import Mapping
from typing import TypeVar

STAGING_BYTES = 256 * 2**20
"""Maximum size of one buffer between two tiers."""
PIECE_BYTES = 32 * 2**20
"""Size of transfers between device and host, through a page-locked buffer."""
BROADCAST_BYTES = 256 * 2**20
"""Maximum size of one flattened broadcast."""
COPIED_ELEMENTS = 2**20
"""Elements per group in a step with copies: of new states, or of 16-bit weights and states."""
PACKED_BELOW = 2**20
"""Unsharded parameters below this size are gathered together."""
LONGEST_DENSE_MASK = 16_384
"""Longest sequence divided over ranks whose windows, packed samples and padding are a dense mask
of sequence x sequence booleans (256 MiB)."""
QUANTIZED_BLOCK = 256
"""Numbers that share one fp32 scale in a quantized gather or reduction."""
GATHERED_BITS, REDUCED_BITS = 8, 4
"""Bits per element of weights (zero_quantized_weights) and gradients (zero_quantized_gradients)."""
PIECES = STAGING_BYTES // PIECE_BYTES
ELEMENT_BYTES = 4
"""All states are fp32."""
PAGE_ELEMENTS = 1024
"""Alignment of direct file access."""
FEWEST_BUFFERS = 2
"""One tile is updated while the previous one is written and the next is read."""

Name = TypeVar("Name")


def host_share(sizes: Mapping[Name, int], ratio: float) -> tuple[dict[Name, int], dict[Name, int]]:
    """Return (sizes on the device, on the host): the first ``1 - ratio`` of the elements stay on
    the device.

    A parameter is updated on one device: the one that would exceed the share is the first on the
    host.
    """
    budget = sum(sizes.values()) * (1.0 - ratio)
    stay: dict[Name, int] = {}
    for name, size in sizes.items():
        budget -= size
        if budget < 0:
            break
        stay[name] = size
    return stay, {name: size for name, size in sizes.items() if name not in stay}


def quantized_bytes(elements: int, bits: int) -> int:
    """Return the bytes of a message of ``elements`` numbers: full blocks, each with its scale."""
    blocks = -(-elements // QUANTIZED_BLOCK)
    return blocks * (QUANTIZED_BLOCK * bits // 8 + 4)


def tile_elements(sub_group_size: int, segments: int = 1) -> int:
    """Return the maximum elements of a tile with ``segments`` tensors (weights, each moment)."""
    return max(1, min(sub_group_size, STAGING_BYTES // (ELEMENT_BYTES * segments)))


def filed_tile_elements(sub_group_size: int, segments: int) -> int:
    """Return the same for a tile in a file, aligned to pages."""
    most = tile_elements(sub_group_size, segments)
    return max(PAGE_ELEMENTS, most - most % PAGE_ELEMENTS)


def buffers(buffer_count: int, segments: int, tiles: int) -> int:
    """Return the number of tiles in memory; ``buffer_count`` counts tensors, including gradients.

    A tile is read into a buffer whose tile has been written.
    """
    return min(max(FEWEST_BUFFERS, buffer_count // (segments + 1)), max(1, tiles))
