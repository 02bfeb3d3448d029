"""Retention of the newest checkpoints of a directory."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsengine.checkpoints.directory import MANIFEST, is_same_checkpoint, read_latest, remove_tag
from dsengine.checkpoints.manifest import FORMAT


def checkpoints(root: Path) -> list[str]:
    """Return the tags of dsengine checkpoints under ``root``, ordered by training step.

    File times, which copies change, only order checkpoints of the same step. Symbolic links do not
    count: what they point to belongs to someone else, or is listed under its own name.
    """
    ordered: list[tuple[int, int, str]] = []
    for path in root.glob(f"*/{MANIFEST}"):
        tag = path.parent.name
        if tag.startswith(".") or path.parent.is_symlink() or path.is_symlink():
            continue
        with suppress(OSError, ValueError):  # not ours, or just removed by another job
            manifest = json.loads(path.read_bytes())
            if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
                ordered.append((_step(manifest), path.stat().st_mtime_ns, tag))
    return [tag for *_, tag in sorted(ordered)]


def _step(manifest: dict[str, Any]) -> int:
    """Return the training step of a checkpoint; -1 if its manifest has none."""
    description = manifest.get("description")
    step = description.get("global_steps") if isinstance(description, dict) else None
    return step if isinstance(step, int) else -1


def check_keep(keep: int) -> None:
    """Raise ValueError for a number below 1."""
    if keep < 1:
        raise ValueError(f"keep must be at least 1 checkpoint, not {keep}")


def retain(root: Path, keep: int) -> None:
    """Remove all but the ``keep`` latest checkpoints; never the one in ``latest``."""
    check_keep(keep)
    tags = checkpoints(root)
    latest = read_latest(root)
    for tag in tags[: max(0, len(tags) - keep)]:
        if latest is None or not is_same_checkpoint(root / tag, root / latest):
            remove_tag(root, tag)
