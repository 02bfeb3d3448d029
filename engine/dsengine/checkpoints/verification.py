"""Whether a checkpoint on disk is what was written, without loading it."""

from pathlib import Path

from dsengine.checkpoints.checksums import faults
from dsengine.checkpoints.directory import read_latest
from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.manifest import read_manifest


def chosen(root: Path, tag: str | None = None) -> Path:
    """The checkpoint of ``tag``, else the one that ``latest`` names, else ``root`` itself."""
    named = tag if tag is not None else read_latest(root)
    return root if named is None else root / named


def verify(path: Path) -> tuple[int, list[str]]:
    """Return the bytes that were compared, and in words what is not as it was written."""
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return 0, [str(error)]
    if not manifest.checksums:
        return 0, [f"{path} was saved without checksums: only its files' sizes are known"]
    compared = sum(int(p[1]) for pieces in manifest.checksums.values() for p in pieces)
    return compared, faults(path, manifest.checksums)
