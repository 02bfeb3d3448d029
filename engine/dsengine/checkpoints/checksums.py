"""Checksums of what is stored, by piece: flipped bits are found before they are trained with.

A piece is what one tensor of one rank takes in a file, or a whole small file. torch stores a
CRC-32 beside each tensor and does not check it; xxh3 takes a fraction of its time.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from dsengine.checkpoints.errors import CheckpointError

ALGORITHM = "xxh3_64"
Piece = tuple[int, int, str]
"""Offset and length in bytes, and the checksum in hexadecimal digits."""
Checksums = Mapping[str, Sequence[Sequence[int | str]]]
"""By file name, its pieces as JSON holds them."""
_BUFFER = 2**18
"""Bytes: what stays in a core's cache between reading and hashing."""
_THREADS = 4
"""Of each rank; reading and hashing leave the interpreter to others."""


def of_piece(path: Path, offset: int, length: int) -> Piece:
    """Return the piece of ``path`` that begins at ``offset``."""
    hashed = xxhash.xxh3_64()
    buffer = memoryview(bytearray(min(_BUFFER, length)))
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        left = length
        while left:
            count = file.readinto(buffer[: min(left, len(buffer))])
            if not count:
                break
            hashed.update(buffer[:count])
            left -= count
    return offset, length, hashed.hexdigest()


def check(folder: Path, wanted: Iterable[tuple[str, int, int]], saved: Checksums) -> None:
    """Compare pieces, given as (file, offset, length), with what was saved.

    Raises CheckpointError naming the first that differs or of which no checksum was saved.
    """
    expected = {
        (name, piece[0], piece[1]): piece[2] for name, pieces in saved.items() for piece in pieces
    }

    def compare(piece: tuple[str, int, int]) -> None:
        name, offset, length = piece
        if piece not in expected:
            raise CheckpointError(
                f"{folder / name}: the metadata names {length} bytes at {offset}, which the "
                "manifest does not know"
            )
        if of_piece(folder / name, offset, length)[2] != expected[piece]:
            raise CheckpointError(
                f"{folder / name}: {length} bytes at {offset} are not those that were written; "
                "the disk or a copy has changed them. Load another checkpoint; "
                "load_checkpoint(..., verify=False) takes this one as it is"
            )

    with ThreadPoolExecutor(_THREADS, "dsengine-checksums") as threads:
        for _ in threads.map(compare, wanted):
            pass


def faults(folder: Path, saved: Checksums) -> list[str]:
    """Every piece of every file that is not what was written, in words."""
    found: list[str] = []
    for name, pieces in saved.items():
        for piece in pieces:
            try:
                check(folder, [(name, int(piece[0]), int(piece[1]))], {name: [piece]})
            except (CheckpointError, OSError) as error:
                found.append(str(error))
    return found
