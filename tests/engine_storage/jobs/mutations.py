"""Randomly changed checkpoints, loaded on two ranks.

Damage is what disks, copies or people do to files. A forgery has matching sizes and checksums, so
that only its contents are wrong.
"""

import copy
import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.checkpoints import Checkpointer, CheckpointError, TrainingState
from dsengine.checkpoints.manifest import hash_range
from engine_storage.jobs.faults import trained
from narrowing import not_none

MANIFEST, STATE, METADATA = "manifest.json", "training_state.pt", ".metadata"
ODD = (None, True, -1, 10**30, 0.5, "x", [], {}, [None], {"x": 1})
"""Values that no checkpoint has in place of valid ones."""


def outcome(folder: str, seed: int) -> str:
    """Return how a changed checkpoint was loaded incorrectly, or ""."""
    root, state, checkpointer = Path(folder), trained(), Checkpointer()
    checkpointer.save(state, root, "good")
    saved = {name: tensor.clone() for name, tensor in _tensors(state)}
    shared: list[Any] = [None]
    if dist.get_rank() == 0:
        shutil.copytree(root / "good", root / "changed")
        shared = [changed(root / "changed", random.Random(seed))]
    dist.broadcast_object_list(shared)
    change, is_forged = shared[0]
    print(f"{seed}: {change}")
    for _, tensor in _tensors(state):
        tensor.fill_(7)
    wrong = _check_load(checkpointer, state, root, saved, is_forged)
    return wrong and f"{change}: {wrong}"


def _check_load(
    checkpointer: Checkpointer,
    state: TrainingState,
    root: Path,
    saved: dict[str, Tensor],
    is_forged: bool,
) -> str:
    try:
        checkpointer.load(state, root, "changed")
    except CheckpointError:
        modified = [name for name, tensor in _tensors(state) if not (tensor == 7).all()]
        return f"refused, but changed: {modified[:3]}" if modified and not is_forged else ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    wrong = [name for name, tensor in _tensors(state) if not tensor.equal(saved[name])]
    return f"loaded, but wrong: {wrong[:3]}" if wrong and not is_forged else ""


def _tensors(state: TrainingState) -> Iterator[tuple[str, Tensor]]:
    """Yield this rank's shard of every weight and optimizer state."""
    for name, tensor in state.weights().items():
        yield name, _local(tensor)
    optimizer = not_none(state.optimizer)
    for name, parameter in state.trained().items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value.dim():
                yield f"{name}.{key}", _local(value)


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def changed(path: Path, draw: random.Random) -> tuple[str, bool]:
    """Change the checkpoint at ``path``; return a description and whether it is a forgery."""
    mutation = draw.choice([*DAMAGES, *FORGERIES])
    change = mutation(path, draw)
    return f"{mutation.__name__.strip('_')} {change}", mutation in FORGERIES


# --- damage


def _file(path: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(path.iterdir()))


def _flip(path: Path, draw: random.Random) -> str:
    file = _file(path, draw)
    data = bytearray(file.read_bytes())
    at = draw.randrange(len(data))
    data[at] ^= 1 << draw.randrange(8)
    file.write_bytes(data)
    return f"{file.name} at {at}"


def _blank(path: Path, draw: random.Random) -> str:
    """Zero a block, as a file system does with one that was never written."""
    file = _file(path, draw)
    data = bytearray(file.read_bytes())
    at = draw.randrange(len(data))
    length = min(draw.choice((16, 512, 4096)), len(data) - at)
    data[at : at + length] = bytes(length)
    file.write_bytes(data)
    return f"{file.name}, {length} at {at}"


def _resize(path: Path, draw: random.Random) -> str:
    file = _file(path, draw)
    data = file.read_bytes()
    length = draw.choice((0, 1, len(data) // 2, len(data) - 1, len(data) + 1, 2 * len(data)))
    file.write_bytes((data * 2)[:length])
    return f"{file.name} to {length}"


def _remove(path: Path, draw: random.Random) -> str:
    file = _file(path, draw)
    file.unlink()
    return file.name


def _swap(path: Path, draw: random.Random) -> str:
    one, other = draw.sample(sorted(path.iterdir()), 2)
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    return f"{one.name} {other.name}"


def _folder(path: Path, draw: random.Random) -> str:
    file = _file(path, draw)
    file.unlink()
    file.mkdir()
    return file.name


DAMAGES: tuple[Callable[[Path, random.Random], str], ...] = (
    _flip,
    _blank,
    _resize,
    _remove,
    _swap,
    _folder,
)

# --- forgeries


def _manifest(path: Path, draw: random.Random) -> str:
    manifest = json.loads((path / MANIFEST).read_bytes())
    change = _altered(manifest, draw)
    (path / MANIFEST).write_text(json.dumps(manifest))
    return change


def _state(path: Path, draw: random.Random) -> str:
    state = torch.load(path / STATE, weights_only=False)
    change = _altered(state, draw)
    torch.save(state, path / STATE)
    _seal(path, STATE)
    return change


def _metadata(path: Path, draw: random.Random) -> str:
    metadata = pickle.loads((path / METADATA).read_bytes())
    tensors, pieces = metadata.state_dict_metadata, metadata.storage_data
    name, index = draw.choice(sorted(tensors)), draw.choice(sorted(pieces, key=str))
    piece = pieces[index]
    ways: dict[str, Callable[[], Any]] = {
        "without a tensor": lambda: tensors.pop(name),
        "without a piece": lambda: pieces.pop(index),
        "without pieces": pieces.clear,
        "another size": lambda: setattr(tensors[name], "size", torch.Size([draw.randrange(99)])),
        "another dtype": lambda: setattr(tensors[name].properties, "dtype", torch.int8),
        "without chunks": tensors[name].chunks.clear,
        "a chunk twice": lambda: tensors[name].chunks.append(tensors[name].chunks[0]),
        "a chunk elsewhere": lambda: setattr(
            tensors[name].chunks[0],
            "offsets",
            torch.Size([draw.choice((-1, 1, 10**9))] * len(tensors[name].size)),
        ),
        "an odd tensor": lambda: tensors.update({name: draw.choice(ODD)}),
        "odd tensors": lambda: setattr(metadata, "state_dict_metadata", draw.choice(ODD)),
        "odd pieces": lambda: setattr(metadata, "storage_data", draw.choice(ODD)),
        **{
            f"{field} of a piece": lambda field=field: pieces.update(
                {index: replace(piece, **{field: draw.choice((*ODD, 0, 7, "other"))})}
            )
            for field in ("offset", "length", "relative_path")
        },
    }
    mutation = draw.choice(sorted(ways))
    ways[mutation]()
    (path / METADATA).write_bytes(pickle.dumps(metadata))
    _seal(path, METADATA)
    return f"{mutation}: {name} {index.fqn}"


FORGERIES: tuple[Callable[[Path, random.Random], str], ...] = (_manifest, _state, _metadata)


def _seal(path: Path, name: str) -> None:
    """Update size and checksum of a file in the manifest."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    size = (path / name).stat().st_size
    manifest["files"][name] = size
    manifest["checksums"][name] = [hash_range(path / name, 0, size)]
    (path / MANIFEST).write_text(json.dumps(manifest))


def _altered(value: Any, draw: random.Random) -> str:
    """Remove or replace an entry at any depth of dictionaries and lists."""
    container, path = value, ""
    while True:
        keys = (
            sorted(container, key=str)
            if isinstance(container, dict)
            else list(range(len(container)))
        )
        key = draw.choice(keys)
        path += f"/{key}"
        child = container[key]
        if isinstance(child, dict | list) and child and draw.random() < 0.8:
            container = child
            continue
        if draw.random() < 0.4:
            del container[key]
            return f"without {path}"
        container[key] = copy.deepcopy(draw.choice(ODD))
        return f"{container[key]!r} as {path}"
