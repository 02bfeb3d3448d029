"""The tensors of a checkpoint, stored with torch.distributed.checkpoint.

It is imported in the functions: its 60 modules are needed at the first save, not before.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.checkpoints.group import CheckpointError, CheckpointGroup
from dsengine.checkpoints.manifest import ByteRange, Checksums, check
from dsengine.communication.peers import failure_reason, is_communication_error
from dsengine.parameters.packed import segments_of
from dsengine.parameters.shards import pieces_of
from dsengine.torch_private.tensors import as_shard, local_part

if TYPE_CHECKING:
    from dsengine.checkpoints.storage import Ranges

_THREADS = 2
"""Writer threads per rank: one waits for the disk while another fills the page cache. For GPU
tensors it is one, because torch then copies ahead of the writes."""
METADATA = ".metadata"
"""The file in which torch.distributed.checkpoint records the location of tensors."""

MODEL = "model."
"""Key prefix of parameters and buffers."""


def weight_key(name: str) -> str:
    return f"{MODEL}{name}"


def write_tensors(
    tensors: dict[str, Tensor], path: Path, group: CheckpointGroup
) -> dict[str, list[ByteRange]]:
    """Write every rank's shards under ``path``, in files of its own, synced to the disk.

    Returns the byte ranges of all ranks, by file.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    from dsengine.checkpoints.storage import RecordingWriter

    with _checkpoint_errors(f"writing {path.parent}"):
        threads = 1 if any(tensor.is_cuda for tensor in tensors.values()) else _THREADS
        writer = RecordingWriter(path, thread_count=threads, sync_files=True)
        save(
            _in_pieces(tensors),
            storage_writer=writer,
            process_group=group.process_group,
            no_dist=not group.distributed,
        )
    own = group.run(lambda: writer.checksums(path), f"reading back {path.parent}")
    return {name: ranges for by_file in group.gather(own) for name, ranges in by_file.items()}


def read_tensors(
    targets: dict[str, Tensor],
    path: Path,
    group: CheckpointGroup,
    checksums: Checksums | None = None,
) -> None:
    """Fill ``targets`` in place, resharding as needed.

    With ``checksums``, every rank verifies what it reads, and no tensor is changed unless all
    match.
    """
    from torch.distributed.checkpoint.state_dict_loader import load

    from dsengine.checkpoints.storage import SafeFileSystemReader

    def compare(ranges: "Ranges") -> None:
        def compare_own() -> None:
            own = ranges()
            if checksums:
                check(path, own, checksums)

        group.run(compare_own, f"checking {path}")

    with _checkpoint_errors(f"reading {path}"):
        load(
            _in_pieces(targets),
            storage_reader=SafeFileSystemReader(path, compare),
            process_group=group.process_group,
            no_dist=not group.distributed,
        )


def saved_tensors(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and dtype of every tensor in the checkpoint at ``path``."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from dsengine.checkpoints.storage import SafeFileSystemReader

    metadata = SafeFileSystemReader(path).read_metadata()
    return {
        key: (item.size, item.properties.dtype)
        for key, item in metadata.state_dict_metadata.items()
        if isinstance(item, TensorStorageMetadata)
    }


class _PackedShard(DTensor):
    """A shard that is several pieces of the full tensor, each stored by itself."""

    def _pieces(self) -> dict[torch.Size, Tensor]:
        """Return the pieces by their offsets in the full tensor."""
        local = local_part(self)
        return {
            torch.Size(each.start for each in there): local[here] for here, there in pieces_of(self)
        }

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [
            ChunkStorageMetadata(offsets, piece.shape) for offsets, piece in self._pieces().items()
        ]

    def __create_write_items__(self, fqn: str, object: Any) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties.create_from_tensor(local_part(self))
        return [
            WriteItem(
                MetadataIndex(fqn, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __get_tensor_shard__(self, index: Any) -> Tensor:
        return self._pieces()[torch.Size(index.offset)]


def _in_pieces(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors``, packed ones as views that are several pieces."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor) and segments_of(tensor) is not None:
            found[name] = view = as_shard(local_part(tensor), tensor)
            cast(Any, view).__class__ = _PackedShard
    return found


@contextmanager
def _checkpoint_errors(action: str) -> Iterator[None]:
    """Convert errors of torch.distributed.checkpoint and of the system to CheckpointError."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as error:  # the same on every rank
        failures = [failure for failure, _ in error.failures.values()]
        if isinstance(failures[0], CheckpointError):  # agreed on by all ranks
            raise failures[0] from None
        reasons = "; ".join(f"rank {r}: {_text(e[0])}" for r, e in sorted(error.failures.items()))
        raise CheckpointError(f"{action} failed: {reasons}") from None
    except CheckpointError:
        raise
    except (OSError, RuntimeError) as error:  # a single process, or a rank that is gone
        reason = failure_reason() if is_communication_error(error) else None
        raise CheckpointError(f"{action} failed: {reason or error}") from error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
