"""Keeping the newest checkpoints of a directory."""

import json
from contextlib import suppress
from pathlib import Path

from dsengine.checkpoints.directory import MANIFEST, read_latest, remove_tag
from dsengine.checkpoints.manifest import FORMAT


def checkpoints(root: Path) -> list[str]:
    """Return the tags of this engine's checkpoints under ``root``, by training step.

    Files' times are changed by copies: they decide only between checkpoints of the same step.
    """
    found: list[tuple[int, int, str]] = []
    for path in root.glob(f"*/{MANIFEST}"):
        tag = path.parent.name
        if tag.startswith("."):
            continue
        with suppress(OSError, ValueError):  # of others, or another job removes it just now
            manifest = json.loads(path.read_bytes())
            if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
                step = manifest.get("description", {}).get("global_steps", -1)
                found.append((step, path.stat().st_mtime_ns, tag))
    return [tag for *_, tag in sorted(found)]


def check_keep(keep: int) -> None:
    """Raise ValueError for a number of checkpoints that leaves none."""
    if keep < 1:
        raise ValueError(f"keep must be at least 1 checkpoint, not {keep}")


def retain(root: Path, keep: int) -> None:
    """Remove all but the ``keep`` of the latest steps; never the one that ``latest`` names."""
    check_keep(keep)
    tags = checkpoints(root)
    latest = read_latest(root)
    for tag in tags[: max(0, len(tags) - keep)]:
        if tag != latest:
            remove_tag(root, tag)
