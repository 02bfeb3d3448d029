"""Checksums of byte ranges of a checkpoint's files, to detect changed bits before training.

A range is one tensor of one rank in a file, or a whole small file. torch stores a CRC-32 beside
each tensor but does not check it; xxh3 takes a fraction of its time.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from dsengine.checkpoints.errors import CheckpointError

ALGORITHM = "xxh3_64"
ByteRange = tuple[int, int, str]
"""Offset and length in bytes, and the checksum in hexadecimal digits."""
Checksums = Mapping[str, Sequence[Sequence[int | str]]]
"""By file name, its ranges as in JSON."""
_BUFFER = 2**18
"""Bytes; stays in a core's cache between reading and hashing."""
_THREADS = 4
"""Per rank; reading and hashing release the GIL."""


def hash_range(path: Path, offset: int, length: int) -> ByteRange:
    """Return the byte range of ``path`` with its checksum."""
    digest = xxhash.xxh3_64()
    buffer = memoryview(bytearray(min(_BUFFER, length)))
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        left = length
        while left:
            count = file.readinto(buffer[: min(left, len(buffer))])
            if not count:
                break
            digest.update(buffer[:count])
            left -= count
    return offset, length, digest.hexdigest()


def check(folder: Path, ranges: Iterable[tuple[str, int, int]], saved: Checksums) -> None:
    """Compare byte ranges, given as (file, offset, length), with their saved checksums.

    Raises CheckpointError naming the first that differs or has no saved checksum.
    """
    expected = {
        (name, entry[0], entry[1]): entry[2] for name, entries in saved.items() for entry in entries
    }

    def compare(byte_range: tuple[str, int, int]) -> None:
        name, offset, length = byte_range
        if byte_range not in expected:
            raise CheckpointError(
                f"{folder / name}: the metadata refers to {length} bytes at {offset}, which are "
                "not in the manifest"
            )
        if hash_range(folder / name, offset, length)[2] != expected[byte_range]:
            raise CheckpointError(
                f"{folder / name}: {length} bytes at {offset} have changed since they were written "
                "(by the disk or a copy). Load another checkpoint; "
                "load_checkpoint(..., verify=False) loads this one unchecked"
            )

    with ThreadPoolExecutor(_THREADS, "dsengine-checksums") as threads:
        for _ in threads.map(compare, ranges):
            pass


def mismatches(folder: Path, saved: Checksums) -> list[str]:
    """Return one message for each byte range that has changed or cannot be read."""
    messages: list[str] = []
    for name, entries in saved.items():
        for entry in entries:
            try:
                check(folder, [(name, int(entry[0]), int(entry[1]))], {name: [entry]})
            except (CheckpointError, OSError) as error:
                messages.append(str(error))
    return messages
