"""Writing a checkpoint: collect, write to a hidden directory on all ranks, publish on rank 0."""

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


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """The state at one step, ready to be written."""

    tensors: dict[str, Tensor]
    small: bytes
    """The small states, serialized, on rank 0."""
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
    """Collect the state to save. The tensors are still those of training."""
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
    excluded = [name for name in state.weights() if name not in weights]
    manifest = Manifest(
        tag=tag,
        weights=shapes(weights),
        excluded=excluded,
        buffers=[name for name in state.buffers() if name in weights],
        tied=state.tied(),
        description=dict(state.description) | {"world_size": group.world_size},
    )
    data = group.run(lambda: plain.dump(small) if group.is_coordinator else b"", f"saving {tag}")
    return Snapshot(tensors=tensors, small=data, manifest=manifest)


def write(
    snapshot: Snapshot, group: CheckpointGroup, root: Path, *, save_latest: bool, keep: int | None
) -> Path:
    """Write on all ranks and publish the checkpoint; see the note in ``directory``."""
    tag = snapshot.manifest.tag
    with directory.PendingCheckpoint(root, tag) as pending:
        created = group.run_on_coordinator(pending.create, f"preparing {root}")
        path = root / created.name
        group.run(lambda: directory.check_shared(path), f"preparing {root}")
        snapshot.manifest.checksums.update(write_tensors(snapshot.tensors, path, group))
        return group.run_on_coordinator(
            lambda: _publish(snapshot, pending, save_latest=save_latest, keep=keep),
            f"saving checkpoint {root / tag}",
        )


def _publish(
    snapshot: Snapshot, pending: directory.PendingCheckpoint, *, save_latest: bool, keep: int | None
) -> Path:
    manifest, path = snapshot.manifest, pending.directory
    directory.write_synced(path / directory.STATE, snapshot.small)
    manifest.files.update(file_sizes(path))
    for name in manifest.files.keys() - manifest.checksums.keys():
        manifest.checksums[name] = [checksums.hash_range(path / name, 0, manifest.files[name])]
    directory.write_synced(path / directory.MANIFEST, manifest.to_bytes())
    final = publish(pending, manifest.description.get("stage", 0), save_latest=save_latest)
    if keep is not None:
        retain(pending.root, keep)
    return final


def publish(pending: directory.PendingCheckpoint, stage: int, *, save_latest: bool) -> Path:
    """Publish the checkpoint with ``latest`` and recovery scripts; return its path."""
    final = pending.publish()
    if save_latest:
        directory.write_latest(pending.root, pending.tag)
    if stage:
        write_recovery_scripts(pending.root, pending.tag)
    return final
