"""Writing a checkpoint: collect, write aside on all ranks, publish on rank 0."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dsengine.checkpoints import checksums, directory, plain
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.manifest import Manifest, file_sizes, shapes
from dsengine.checkpoints.optimizer_state import optimizer_tensors, optimizer_values
from dsengine.checkpoints.random_state import random_state
from dsengine.checkpoints.recovery_scripts import write_recovery_scripts
from dsengine.checkpoints.retention import retain
from dsengine.checkpoints.staging import Staging
from dsengine.checkpoints.state import TrainingState
from dsengine.checkpoints.tensor_files import weight_key, write_tensors
from dsengine.parameters.names import named_persistent_buffers


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """One moment of training, ready to be written: nothing in it changes any more."""

    tensors: dict[str, Tensor]
    small: bytes
    """The small states as their file holds them, on rank 0."""
    manifest: Manifest

    def stage(self, staging: Staging) -> None:
        """Copy the tensors to host memory."""
        self.tensors = staging.take(self.tensors)


def collect(
    state: TrainingState,
    group: CheckpointGroup,
    tag: str,
    client_state: dict[str, Any],
    *,
    exclude_frozen: bool,
) -> Snapshot:
    """Gather what goes into the checkpoint. The tensors are still those of training."""
    weights = state.weights(exclude_frozen=exclude_frozen)
    tensors = {weight_key(name): tensor for name, tensor in weights.items()}
    small: dict[str, Any] = {
        "client_state": client_state,
        "parts": {name: part.state_dict() for name, part in state.parts.items()},
        "random": group.gather(random_state()),
        "optimizer": None,
    }
    if state.optimizer is not None:
        trained = state.trained()
        tensors |= optimizer_tensors(trained, state.optimizer)
        small["optimizer"] = optimizer_values(trained, state.optimizer)
    left_out = [name for name in state.parameters() if name not in weights]
    manifest = Manifest(
        tag=tag,
        weights=shapes(weights),
        excluded=left_out,
        buffers=[name for name, _ in named_persistent_buffers(state.module)],
        tied=state.tied(),
        description=dict(state.description) | {"world_size": group.world_size},
    )
    data = group.run(lambda: plain.dump(small) if group.is_coordinator else b"", f"saving {tag}")
    return Snapshot(tensors=tensors, small=data, manifest=manifest)


def write(
    snapshot: Snapshot, group: CheckpointGroup, root: Path, *, save_latest: bool, keep: int | None
) -> Path:
    """Write on all ranks and make the checkpoint visible. See the note in ``directory``."""
    tag = snapshot.manifest.tag
    with directory.Writing(root, tag) as writing:
        begun = group.run_on_coordinator(writing.begin, f"preparing {root}")
        aside = root / begun.name
        group.run(lambda: directory.check_shared(aside), f"preparing {root}")
        snapshot.manifest.checksums.update(write_tensors(snapshot.tensors, aside, group))
        return group.run_on_coordinator(
            lambda: _publish(snapshot, writing, save_latest=save_latest, keep=keep),
            f"saving checkpoint {root / tag}",
        )


def _publish(
    snapshot: Snapshot, writing: directory.Writing, *, save_latest: bool, keep: int | None
) -> Path:
    manifest, aside = snapshot.manifest, writing.aside
    directory.write_synced(aside / directory.STATE, snapshot.small)
    manifest.files.update(file_sizes(aside))
    for name in manifest.files.keys() - manifest.checksums.keys():
        manifest.checksums[name] = [checksums.of_piece(aside / name, 0, manifest.files[name])]
    directory.write_synced(aside / directory.MANIFEST, manifest.to_bytes())
    final = publish(writing, manifest.description.get("stage", 0), save_latest=save_latest)
    if keep is not None:
        retain(writing.root, keep)
    return final


def publish(writing: directory.Writing, stage: int, *, save_latest: bool) -> Path:
    """Make what was written visible, with what lies beside it; return where it is."""
    final = writing.publish()
    if save_latest:
        directory.write_latest(writing.root, writing.tag)
    if stage:
        write_recovery_scripts(writing.root, writing.tag)
    return final
