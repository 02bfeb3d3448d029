"""A run that is saved in DeepSpeed's own files: first in ours, aside, by all ranks.

Only who has the whole of a run can lay it out as DeepSpeed does, by ranks of its own counting: rank
0 reads what all have written. Nothing of that is visible before it is whole in DeepSpeed's form.
"""

from pathlib import Path

from dsengine.checkpoints.deepspeed_layout.whole import own_checkpoint
from dsengine.checkpoints.deepspeed_layout.write import write_files
from dsengine.checkpoints.directory import Writing, discard, write_latest
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.recovery_scripts import NAMES, write_recovery_scripts
from dsengine.checkpoints.save import Snapshot, write


def save_for_deepspeed(
    snapshot: Snapshot, group: CheckpointGroup, root: Path, *, save_latest: bool
) -> Path:
    """Write ``root/tag`` as DeepSpeed reads it at this stage on this many ranks. Collective.

    All of it is in the memory of rank 0 meanwhile. Raises CheckpointError on every rank for what
    DeepSpeed's files have no place for, and where any rank could not write.
    """
    tag = snapshot.manifest.tag
    with Writing(root, tag) as writing:
        begun = group.run_on_coordinator(writing.begin, f"preparing {root}")
        own = write(snapshot, group, root / begun.name, save_latest=False, keep=None)
        return group.run_on_coordinator(
            lambda: _publish(own, writing, save_latest=save_latest),
            f"saving checkpoint {root / tag}",
        )


def _publish(own: Path, writing: Writing, *, save_latest: bool) -> Path:
    saved = own_checkpoint(own)
    discard(own)
    for name in NAMES:
        (writing.aside / name).unlink(missing_ok=True)
    write_files(saved, writing.aside, saved.stage, saved.world_size)
    written = writing.publish()
    if save_latest:
        write_latest(writing.root, writing.tag)
    if saved.stage:
        write_recovery_scripts(writing.root, writing.tag)
    return written
