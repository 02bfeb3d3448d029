"""Keeping the newest checkpoints of a directory."""

import json
from pathlib import Path

from dsengine.checkpoints.directory import MANIFEST, read_latest, remove_tag
from dsengine.checkpoints.manifest import FORMAT


def checkpoints(root: Path) -> list[str]:
    """Return the tags of this engine's checkpoints under ``root``, oldest first."""
    found: list[tuple[float, str]] = []
    for manifest in root.glob(f"*/{MANIFEST}"):
        tag = manifest.parent.name
        if not tag.startswith(".") and _is_ours(manifest):
            found.append((manifest.stat().st_mtime_ns, tag))
    return [tag for _, tag in sorted(found)]


def retain(root: Path, keep: int) -> None:
    """Remove all but the ``keep`` newest; never the one that ``latest`` names."""
    if keep < 1:
        raise ValueError(f"keep must be at least 1 checkpoint, not {keep}")
    tags = checkpoints(root)
    latest = read_latest(root)
    for tag in tags[: max(0, len(tags) - keep)]:
        if tag != latest:
            remove_tag(root, tag)


def _is_ours(manifest: Path) -> bool:
    try:
        return json.loads(manifest.read_bytes()).get("format") == FORMAT
    except (OSError, ValueError, AttributeError):
        return False
