"""Writing a checkpoint: collect, write to a hidden directory on all ranks, publish on rank 0.

[Note: reused memory]
Each save reuses the copies of the previous one, which has been written by then: touching a page
for the first time costs several times its copy, and pinning it even more. So a run that saves
asynchronously keeps a second copy of its states in host memory until it ends.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.checkpoints import directory, small_states
from dsengine.checkpoints.choice import retain
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.manifest import Manifest, file_sizes, hash_range, shapes
from dsengine.checkpoints.small_states import random_state
from dsengine.checkpoints.state import NamedOptimizer, TrainingState, joined_values
from dsengine.checkpoints.tensor_files import weight_key, write_tensors
from dsengine.communication.devices import wait_for_device
from dsengine.tiers import memory
from dsengine.torch_private.tensors import as_shard, local_part


class Staging:
    """Host memory for the local shards of a save."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return host copies of the local shards, sharded alike; valid until the next call."""
        self._copies = {name: self._buffer(name, local_part(t)) for name, t in tensors.items()}
        for name, tensor in tensors.items():
            local = local_part(tensor)
            self._copies[name].copy_(local, non_blocking=self._copies[name].is_pinned())
        for device in {tensor.device for tensor in tensors.values()}:
            wait_for_device(device)
        return {
            name: as_shard(self._copies[name], tensor) if isinstance(tensor, DTensor) else copy
            for (name, tensor), copy in zip(tensors.items(), self._copies.values(), strict=True)
        }

    def _buffer(self, name: str, local: Tensor) -> Tensor:
        copy = self._copies.get(name)
        if copy is not None and (copy.shape, copy.dtype) == (local.shape, local.dtype):
            return copy
        pin = memory.can_pin() and not memory.is_on_host(local)
        return memory.empty_on_host(local.shape, pin=pin, dtype=local.dtype)


RECOVERY_SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")
"""Scripts that DeepSpeed writes beside its checkpoints."""
_SCRIPT = '''#!/usr/bin/env python
"""Export the full weights of a checkpoint in this folder: python {name} . weights/"""

from dsengine.utils.{module} import *  # noqa: F403
from dsengine.utils.{module} import main

if __name__ == "__main__":
    main()
'''


def write_recovery_scripts(root: Path, tag: str) -> None:
    """Write the scripts to ``root``, where ``tag`` was saved, unless they exist."""
    for name in RECOVERY_SCRIPTS:
        if (root / name).exists():
            continue
        new = root / tag / f".{name}"
        with suppress(FileNotFoundError):  # another save is replacing this tag, and writes it
            new.write_text(_SCRIPT.format(name=name, module=name.removesuffix(".py")))
            new.chmod(0o755)
            new.replace(root / name)


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


@dataclass(slots=True)
class Contents:
    """What the files describe of a model, or of a pipeline stage; see ``Manifest``.

    ``optimizer``: the groups and the state that is not per element; None without an optimizer.
    """

    weights: dict[str, list[int]]
    excluded: list[str]
    buffers: list[str]
    tied: dict[str, str]
    optimizer: dict[str, Any] | None

    @classmethod
    def of(
        cls, state: TrainingState, weights: Mapping[str, Tensor], optimizer: NamedOptimizer | None
    ) -> Self:
        return cls(
            weights=shapes(weights),
            excluded=[name for name in state.weights() if name not in weights],
            buffers=[name for name in state.buffers() if name in weights],
            tied=state.tied(),
            optimizer=None if optimizer is None else optimizer.values(),
        )

    def joined(self, other: Self) -> Self:
        """Return the contents of both stages, tied weights once."""
        return replace(
            self,
            weights=self.weights | other.weights,
            excluded=[*dict.fromkeys(self.excluded + other.excluded)],
            buffers=[*dict.fromkeys(self.buffers + other.buffers)],
            tied=self.tied | other.tied,
            optimizer=joined_values(self.optimizer, other.optimizer),
        )


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
    optimizer = state.named_optimizer()
    contents = _contents_of_stages(Contents.of(state, weights, optimizer), state, group)
    tensors = {weight_key(name): tensor for name, tensor in weights.items()}
    small: dict[str, Any] = {
        "client_state": client_state,
        "parts": {name: part.state_dict() for name, part in state.parts.items()},
        "random": group.gather(random_state()),
        "optimizer": contents.optimizer,
    }
    if optimizer is not None:
        tensors |= optimizer.tensors()
    manifest = Manifest(
        tag=tag,
        weights=contents.weights,
        excluded=contents.excluded,
        buffers=contents.buffers,
        tied=contents.tied,
        description=dict(state.description) | {"world_size": group.world_size},
    )
    data = group.run(
        lambda: small_states.dump(small) if group.is_coordinator else b"", f"saving {tag}"
    )
    return Snapshot(tensors=tensors, small=data, manifest=manifest)


def _contents_of_stages(
    own: "Contents", state: TrainingState, group: CheckpointGroup
) -> "Contents":
    """Return the contents of all pipeline stages; without stages, this rank's. Collective."""
    if state.stage_described is None:
        return own
    stages = [each for each in group.gather(own if state.stage_described else None) if each]
    return reduce(Contents.joined, stages)


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
        manifest.checksums[name] = [hash_range(path / name, 0, manifest.files[name])]
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
