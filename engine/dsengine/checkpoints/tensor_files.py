"""The tensors of a checkpoint, through torch.distributed.checkpoint.

It is imported where it is used: 60 modules that a run waits for at its first save, not before.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.communication.peers import failed_rank, is_communication_error


def write_tensors(tensors: dict[str, Tensor], path: Path, group: CheckpointGroup) -> None:
    """Write every rank's parts under ``path``, one file per rank, synced to the disk."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with _told_plainly(f"writing {path.parent}"):
        save(
            tensors,
            storage_writer=FileSystemWriter(path, single_file_per_rank=True, sync_files=True),
            process_group=group.process_group,
            no_dist=not group.distributed,
        )


def read_tensors(targets: dict[str, Tensor], path: Path, group: CheckpointGroup) -> None:
    """Fill ``targets`` in place, resharding as they ask."""
    from torch.distributed.checkpoint.state_dict_loader import load

    from dsengine.checkpoints.metadata_reader import SafeFileSystemReader

    with _told_plainly(f"reading {path}"):
        load(
            targets,
            storage_reader=SafeFileSystemReader(path),
            process_group=group.process_group,
            no_dist=not group.distributed,
        )


def saved_tensors(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and dtype of every tensor in the checkpoint at ``path``."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from dsengine.checkpoints.metadata_reader import SafeFileSystemReader

    metadata = SafeFileSystemReader(path).read_metadata()
    return {
        key: (item.size, item.properties.dtype)
        for key, item in metadata.state_dict_metadata.items()
        if isinstance(item, TensorStorageMetadata)
    }


@contextmanager
def _told_plainly(what: str) -> Iterator[None]:
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as error:  # the same on every rank
        reasons = "; ".join(f"rank {r}: {e[0]}" for r, e in sorted(error.failures.items()))
        raise CheckpointError(f"{what} failed: {reasons}") from None
    except (OSError, RuntimeError) as error:  # a single process, or a rank that is gone
        reason = failed_rank() if is_communication_error(error) else None
        raise CheckpointError(f"{what} failed: {reason or error}") from error
