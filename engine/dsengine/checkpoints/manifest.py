"""manifest.json: the contents of a checkpoint, and checks that a checkpoint is what was written.

[Note: checksums]
A byte range is one tensor of one rank in a file, or all of a small file. torch stores a CRC-32
beside each tensor but does not check it; xxh3 takes a fraction of its time.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import xxhash
from torch import Tensor

from dsengine.checkpoints.directory import MANIFEST, OWNER
from dsengine.checkpoints.group import CheckpointError, CheckpointMismatchError

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


FORMAT = "dsengine-checkpoint"
FORMAT_VERSION = 1
_MAX_LISTED = 8
_DESCRIPTION = {
    "stage": int,
    "global_steps": int,
    "world_size": int,
    "precision": str,
    "config": dict[str, Any],
    "axes": dict[str, int],
}
"""Types of entries of ``description``, if it has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """``weights``: name -> shape. ``files``: name -> size in bytes of every other file."""

    tag: str
    weights: dict[str, list[int]]
    excluded: list[str] = field(default_factory=list)
    """Frozen parameters excluded on request."""
    buffers: list[str] = field(default_factory=list)
    """The weights that are buffers."""
    tied: dict[str, str] = field(default_factory=dict)
    """Aliases of tied weights, with the name under which the weight is saved."""
    files: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, list[ByteRange]] = field(default_factory=dict)
    """By file, its ranges. Older checkpoints have none and are not verified."""
    checksum: str = ALGORITHM
    description: dict[str, Any] = field(default_factory=dict)
    """Of the run: stage, step, precision, config, ranks by axis and each rank's coordinates.

    Older checkpoints lack some of these.
    """
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()


def shapes(weights: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in weights.items()}


def file_sizes(directory: Path) -> dict[str, int]:
    return {
        path.name: path.stat().st_size
        for path in sorted(directory.iterdir())
        if path.name not in (MANIFEST, OWNER)
    }


def read_manifest(directory: Path, *, check_files: bool = True) -> Manifest:
    """Read and check the manifest of a checkpoint directory.

    Raises CheckpointError if it is not a dsengine checkpoint, has a newer format, or files are
    missing or differ in size from the manifest.
    """
    path = directory / MANIFEST
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(_not_ours(directory)) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not the manifest of a dsengine checkpoint")
    if raw.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {raw.get('format_version')!r}; this dsengine reads "
            f"{FORMAT_VERSION}"
        )
    if raw.get("checksum", ALGORITHM) != ALGORITHM:
        raw["checksums"] = {}  # of an unsupported algorithm
    manifest = Manifest(**_fields(path, raw))
    if check_files:
        _check_files(directory, manifest)
    return manifest


def _fields(path: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a manifest. Raises CheckpointError if one has another type."""
    kinds = get_type_hints(Manifest)
    for name in ("tag", "weights"):
        if name not in raw:
            raise CheckpointError(f"{path}: the field {name} is missing")
    _check_types(path, "", raw, kinds)
    _check_types(path, "description.", raw.get("description", {}), _DESCRIPTION)
    return {name: raw[name] for name in kinds if name in raw}


def _check_types(
    path: Path, prefix: str, values: Mapping[str, Any], kinds: Mapping[str, Any]
) -> None:
    for name, kind in kinds.items():
        if name in values and not _has_type(values[name], kind):
            raise CheckpointError(
                f"{path}: the field {prefix}{name} has the invalid value {values[name]!r:.60}"
            )


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether JSON data has the type that an annotation states."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is dict:
        return isinstance(value, dict) and all(_has_type(v, inner[1]) for v in value.values())
    if origin is list:
        return isinstance(value, list) and all(_has_type(v, inner[0]) for v in value)
    if origin is tuple:  # a list in JSON
        return (
            isinstance(value, list)
            and len(value) == len(inner)
            and all(map(_has_type, value, inner))
        )
    return isinstance(value, kind) and not isinstance(value, bool)


def _not_ours(directory: Path) -> str:
    if not directory.is_dir():
        return f"{directory} does not exist"
    if any(directory.glob("*_model_states.pt")):
        return (
            f"{directory} was written by DeepSpeed, not by dsengine; convert it with `dsconfig "
            f"checkpoint convert {directory} --to safetensors -o DIR`"
        )
    # A Trainer's folder has one directory of checkpoints per checkpoint-N.
    found = list(directory.glob(f"*/{MANIFEST}")) or list(directory.glob(f"*/*/{MANIFEST}"))
    newest = max((path.parent for path in found), key=lambda at: at.stat().st_mtime, default=None)
    if newest is not None and newest.parent != directory:
        newest = newest.parent
    hint = "" if newest is None else f"; did you mean {newest}?"
    return f"{directory} is not a dsengine checkpoint: it has no {MANIFEST}{hint}"


def _check_files(directory: Path, manifest: Manifest) -> None:
    for name, size in manifest.files.items():
        path = directory / name
        actual = path.stat().st_size if path.exists() else None
        if actual is None:
            raise CheckpointError(f"{path} is missing; the checkpoint is incomplete")
        if actual != size:
            raise CheckpointError(
                f"{path} has {actual} bytes instead of {size}: it is truncated or changed"
            )


def check_weights(
    saved: Mapping[str, list[int]],
    expected: Mapping[str, Tensor],
    *,
    strict: bool,
    excluded: Sequence[str] = (),
) -> list[str]:
    """Return the names to load, given the ``saved`` shapes.

    Raises CheckpointMismatchError, naming the keys, if shapes differ, or, with ``strict``, if names
    are missing or unexpected, except ``excluded`` ones.
    """
    missing = [n for n in expected if n not in saved and n not in excluded]
    unexpected = [n for n in saved if n not in expected]
    reshaped = [
        f"{n} ({tuple(saved[n])} in the checkpoint, {tuple(t.shape)} in the model)"
        for n, t in expected.items()
        if n in saved and list(t.shape) != saved[n]
    ]
    problems = [("shape mismatch", reshaped)]
    if strict:
        problems += [("missing in the checkpoint", missing), ("not in the model", unexpected)]
    parts = [f"{problem}: {_listed(names)}" for problem, names in problems if names]
    if parts:
        raise CheckpointMismatchError(f"checkpoint of another model; {'; '.join(parts)}")
    return [n for n in expected if n in saved]


def _listed(names: list[str]) -> str:
    rest = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def verify(path: Path) -> tuple[int, list[str]]:
    """Return the number of verified bytes, and a message for each mismatch."""
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return 0, [str(error)]
    if not manifest.checksums:
        return 0, [f"{path} was saved without checksums: only file sizes can be verified"]
    verified = sum(int(r[1]) for ranges in manifest.checksums.values() for r in ranges)
    return verified, mismatches(path, manifest.checksums)
