"""The tensors of a checkpoint, through torch.distributed.checkpoint.

It is imported where it is used: 60 modules that a run waits for at its first save, not before.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dsengine.checkpoints.checksums import Checksums, Piece, check
from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.communication.peers import failure_reason, is_communication_error

if TYPE_CHECKING:
    from dsengine.checkpoints.metadata_reader import Wanted

_THREADS = 2
"""That write, of each rank: one waits for the disk while another one fills the page cache. From an
accelerator it is one, for which torch copies ahead of the writing."""
METADATA = ".metadata"
"""The file in which torch.distributed.checkpoint says where everything lies."""

MODEL = "model."
"""What the keys of parameters and buffers begin with."""


def weight_key(name: str) -> str:
    return f"{MODEL}{name}"


def write_tensors(
    tensors: dict[str, Tensor], path: Path, group: CheckpointGroup
) -> dict[str, list[Piece]]:
    """Write every rank's parts under ``path``, in files of its own, synced to the disk.

    Returns the pieces of all ranks, by file.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    from dsengine.checkpoints.recording_writer import RecordingWriter

    with _told_plainly(f"writing {path.parent}"):
        threads = 1 if any(each.is_cuda for each in tensors.values()) else _THREADS
        writer = RecordingWriter(path, thread_count=threads, sync_files=True)
        save(
            tensors,
            storage_writer=writer,
            process_group=group.process_group,
            no_dist=not group.distributed,
        )
    mine = group.run(lambda: writer.pieces(path), f"reading back {path.parent}")
    return {name: pieces for of_rank in group.gather(mine) for name, pieces in of_rank.items()}


def read_tensors(
    targets: dict[str, Tensor],
    path: Path,
    group: CheckpointGroup,
    checksums: Checksums | None = None,
) -> None:
    """Fill ``targets`` in place, resharding as they ask.

    With ``checksums``, every rank compares what it is to read, and none changes a tensor unless
    all is as it was written.
    """
    from torch.distributed.checkpoint.state_dict_loader import load

    from dsengine.checkpoints.metadata_reader import SafeFileSystemReader

    def compare(wanted: "Wanted") -> None:
        def compared() -> None:
            pieces = wanted()
            if checksums:
                check(path, pieces, checksums)

        group.run(compared, f"checking {path}")

    with _told_plainly(f"reading {path}"):
        load(
            targets,
            storage_reader=SafeFileSystemReader(path, compare),
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
        failures = [failure for failure, _ in error.failures.values()]
        if isinstance(failures[0], CheckpointError):  # agreed on by all ranks
            raise failures[0] from None
        reasons = "; ".join(f"rank {r}: {_said(e[0])}" for r, e in sorted(error.failures.items()))
        raise CheckpointError(f"{what} failed: {reasons}") from None
    except CheckpointError:
        raise
    except (OSError, RuntimeError) as error:  # a single process, or a rank that is gone
        reason = failure_reason() if is_communication_error(error) else None
        raise CheckpointError(f"{what} failed: {reason or error}") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
