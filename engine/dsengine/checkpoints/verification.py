"""Verification of a checkpoint on disk, without loading it."""

from pathlib import Path

from dsengine.checkpoints.checksums import mismatches
from dsengine.checkpoints.directory import read_latest
from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.manifest import read_manifest


def checkpoint_path(root: Path, tag: str | None = None) -> Path:
    """Return the path of ``tag`` (default: that in ``latest``, otherwise ``root`` itself)."""
    chosen = tag if tag is not None else read_latest(root)
    return root if chosen is None else root / chosen


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
