"""Choosing among the checkpoints of a directory: which to load, and which to keep.

[Note: checkpoints that other jobs remove]
Between choosing and reading, a job that keeps only some checkpoints may remove the chosen one. A
load that fails then starts again with the checkpoint that has become the newest.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

from dsengine.checkpoints.directory import (
    LATEST,
    MANIFEST,
    is_same_checkpoint,
    read_latest,
    remove_tag,
)
from dsengine.checkpoints.group import CheckpointError, CheckpointGroup
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


logger = getLogger("dsengine.checkpoint")
T = TypeVar("T")
_ATTEMPTS = 10
"""How many checkpoints in a row may be removed while they are being loaded."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A checkpoint, and which directory it was: another save may replace it under the same tag."""

    tag: str
    directory: tuple[int, int] | None


def choose(root: Path, tag: str | None = None) -> Chosen | None:
    """Return ``tag``, or by default the checkpoint in ``latest``.

    If that does not exist, the newest complete one; None without a file ``latest``.
    """
    if tag is not None:
        return Chosen(tag, _identity(root / tag))
    latest = read_latest(root)
    if latest is None:
        return None
    directory = _identity(root / latest)
    if directory is None and (others := checkpoints(root)):
        newest = others[-1]
        logger.warning(
            "%s names %s, which does not exist: using %s, the newest complete checkpoint",
            root / LATEST,
            latest,
            newest,
        )
        return Chosen(newest, _identity(root / newest))
    return Chosen(latest, directory)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def load_chosen(
    root: Path, tag: str | None, group: CheckpointGroup, load: Callable[[str], T]
) -> tuple[str, T] | None:
    """Call ``load`` with ``tag``, or the newest; return the tag and the result.

    A load that fails starts again if another checkpoint is to be loaded by then, and so does one
    whose directory was replaced, which may have read parts of both. Returns None if there is no
    file ``latest``. Collective.
    """

    def chosen_now() -> Chosen | None:
        return group.run_on_coordinator(lambda: choose(root, tag), f"reading {root}")

    chosen = chosen_now()
    for _ in range(_ATTEMPTS):
        if chosen is None:
            return None
        try:
            result = load(chosen.tag)
        except CheckpointError as error:
            now, reason = chosen_now(), str(error)
            if now == chosen:
                raise
        else:
            now, reason = _replacement(root, chosen, group), f"{root / chosen.tag} was replaced"
            if now is None:
                return chosen.tag, result
        if group.is_coordinator:
            logger.warning("starting again with another checkpoint: %s", reason)
        chosen = now
    raise CheckpointError(f"other jobs replaced {root / LATEST} during each of {_ATTEMPTS} loads")


def _replacement(root: Path, chosen: Chosen, group: CheckpointGroup) -> Chosen | None:
    """Return the checkpoint that has replaced the chosen one under its tag, if any."""

    def replaced() -> Chosen | None:
        now = Chosen(chosen.tag, _identity(root / chosen.tag))
        return None if now.directory in (None, chosen.directory) else now

    return group.run_on_coordinator(replaced, f"reading {root / chosen.tag}")
