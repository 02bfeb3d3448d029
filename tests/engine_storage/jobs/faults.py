"""All faults of checkpoints, in sequence, on two ranks."""

import io
import json
import pickle
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.tensor import DTensor

from dsengine.checkpoints import (
    Checkpointer,
    CheckpointError,
    TrainingState,
    checkpoints,
    directory,
    storage,
)
from dsengine.checkpoints.manifest import mismatches, read_manifest
from engine_storage.jobs.sequence_layouts import digests
from engine_storage.jobs.toy import ToyModel, bare, named_parameters_for, shard, train_step
from suite.limits import scaled
from training import axes


class Malicious:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.target, "ran"))


def trained(stage: int = 3, optimizer_type: Any = torch.optim.AdamW) -> TrainingState:
    torch.manual_seed(1)
    model = shard(ToyModel(), stage)
    optimizer = optimizer_type(named_parameters_for(model), lr=0.01)
    train_step(model, optimizer, stage, 0)
    return TrainingState(module=bare(model), optimizer=optimizer)


def message_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except (CheckpointError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def damage(source: Path, target: Path, change: Callable[[Path], Any]) -> Path:
    """Copy a checkpoint and change the copy on rank 0."""
    if dist.get_rank() == 0:
        shutil.copytree(source, target)
        change(target)
    dist.barrier()
    return target


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def outcomes(folder: str) -> dict[str, Any]:
    """Return the error message by fault."""
    root, rank = Path(folder), dist.get_rank()
    checkpointer = Checkpointer()
    state = trained()
    good = checkpointer.save(state, root, "global_step1")
    result: dict[str, Any] = {}

    def loading(tag: str, target: TrainingState = state, **options: Any) -> str:
        return message_of(lambda: checkpointer.load(target, root, tag, **options))

    result["nothing"] = checkpointer.load(state, root / "nowhere")[0]
    result["no such tag"] = loading("global_step99")
    other = TrainingState(module=nn.Sequential(nn.Linear(2, 2), ToyModel()))
    result["another model"] = loading("global_step1", other)
    wide = ToyModel()
    wide.blocks[1].up = nn.Linear(12, 40)
    result["another shape"] = loading("global_step1", TrainingState(module=wide), strict=False)
    adagrad = torch.optim.Adagrad(state.module.parameters())
    adagrad_state = TrainingState(module=state.module, optimizer=adagrad)
    result["another optimizer"] = loading("global_step1", adagrad_state)
    data = "__1_0.distcp"
    damage(good, root / "short", lambda d: shorten(d / data))
    result["truncated"] = loading("short")
    damage(good, root / "missing", lambda d: (d / data).unlink())
    result["missing file"] = loading("missing")
    damage(
        good,
        root / "state",
        lambda d: (d / "training_state.pt").write_bytes(
            b"x" * (d / "training_state.pt").stat().st_size
        ),
    )
    result["changed state"] = loading("state")
    result["foreign state"] = loading("state", verify=False)
    proof = root / "proof"
    damage(good, root / "malicious", lambda d: plant(d, proof))
    result["malicious metadata"] = loading("malicious", verify=False)
    damage(good, root / "bytes", lambda d: call_bytes(d, proof))
    result["a weight that is not a tensor"] = loading("bytes", verify=False)
    damage(good, root / "outside", lambda d: point_outside(d))
    result["a weight elsewhere"] = loading("outside", verify=False)
    result["malicious code ran"] = proof.exists()
    damage(
        good,
        root / "deepspeed",
        lambda d: ((d / "manifest.json").unlink(), (d / "mp_rank_00_model_states.pt").touch()),
    )
    result["deepspeed"] = loading("deepspeed")
    result |= flipped(state, good, root / "flipped")
    result["intact"] = loading("global_step1")
    result["full disk"] = full_disk(lambda: checkpointer.save(state, root, "global_step2"))
    result["thread"] = thread_fails(checkpointer, state, root)
    result["latest after it"] = (root / "latest").read_text()
    result["visible after it"] = sorted(checkpoints(root))[:1]
    result["client state"] = message_of(
        lambda: checkpointer.save(state, root, "t", client_state={"bad": Malicious(proof)})
    )
    result["client state back"] = client_state_back(checkpointer, state, root)
    for tag in ("../x", "latest", "step1 "):
        result[f"tag {tag}"] = message_of(lambda tag=tag: checkpointer.save(state, root, tag))
    with mock.patch.object(directory, "VISIBILITY_SECONDS", 0.2):
        result["own disks"] = message_of(
            lambda: checkpointer.save(state, root / f"disk{rank}", "global_step1")
        )
    result["tags differ"] = message_of(
        lambda: Checkpointer(tag_validation="fail").save(state, root, f"step{rank}")
    )
    result |= asynchronous(state, root / "later") | retained(state, root / "few") | frozen(root)
    return result


def of_divided_model(axis: str, folder: str) -> dict[str, Any]:
    """Return the error by fault of an engine whose ranks divide the model or its samples."""
    root, engine = Path(folder), axes.started(axis, 1)
    axes.window(engine, 0)
    engine.save_checkpoint(root, tag="good")
    before, data = digests(engine), "__1_0.distcp"
    damage(root / "good", root / "short", lambda d: shorten(d / data))
    damage(
        root / "good",
        root / "flipped",
        lambda d: flip(d / data, json.loads((d / "manifest.json").read_bytes())),
    )
    axes.window(engine, 1)
    later = digests(engine)
    result: dict[str, Any] = {
        tag: message_of(lambda tag=tag: engine.load_checkpoint(root, tag=tag))
        for tag in ("short", "flipped")
    }
    result["full disk"] = full_disk(lambda: engine.save_checkpoint(root, tag="never"))
    result["unchanged"] = digests(engine) == later != before
    result["latest"] = (root / "latest").read_text()
    engine.load_checkpoint(root)
    result["loaded"] = digests(engine) == before
    engine.destroy()
    return result


def plant(directory: Path, proof: Path) -> None:
    metadata = directory / ".metadata"
    size = metadata.stat().st_size
    metadata.write_bytes(pickle.dumps(Malicious(proof)).ljust(size, b"."))


def call_bytes(directory: Path, proof: Path) -> None:
    """Declare a weight as bytes, which torch would unpickle, with malicious data."""
    metadata = read_metadata(directory)
    for index, info in metadata.storage_data.items():
        if index.fqn == "model.embedding.weight":
            info.relative_path, info.offset = "evil", 0
            buffer = io.BytesIO()
            torch.save(Malicious(proof), buffer)
            info.length = (directory / "evil").write_bytes(buffer.getvalue())
    metadata.state_dict_metadata["model.embedding.weight"] = BytesStorageMetadata()
    write_metadata(directory, metadata)


def point_outside(directory: Path) -> None:
    metadata = read_metadata(directory)
    for info in metadata.storage_data.values():
        info.relative_path = f"../global_step1/{info.relative_path}"
    write_metadata(directory, metadata)


def read_metadata(directory: Path) -> Any:
    return pickle.loads((directory / ".metadata").read_bytes())


def write_metadata(directory: Path, metadata: Any) -> None:
    """Update the size in the manifest too, as a forger would."""
    data = pickle.dumps(metadata)
    (directory / ".metadata").write_bytes(data)
    manifest = json.loads((directory / "manifest.json").read_bytes())
    manifest["files"][".metadata"] = len(data)
    (directory / "manifest.json").write_text(json.dumps(manifest))


def flipped(state: TrainingState, good: Path, copy: Path) -> dict[str, Any]:
    """Change one bit of a tensor of rank 1, without changing the file size."""
    data = "__1_0.distcp"
    damage(good, copy, lambda d: flip(d / data, json.loads((d / "manifest.json").read_bytes())))
    checkpointer = Checkpointer()
    weight = next(iter(state.trained().values()))
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    with torch.no_grad():
        local.fill_(7.0)
    result = message_of(lambda: checkpointer.load(state, copy.parent, copy.name))
    kept = bool((local == 7.0).all())
    unverified = message_of(lambda: checkpointer.load(state, copy.parent, copy.name, verify=False))
    return {
        "flipped bit": result,
        "weights after it": kept,
        "unverified": unverified,
        "mismatches": mismatches(copy, read_manifest(copy).checksums),
        "mismatches of an intact one": mismatches(good, read_manifest(good).checksums),
    }


def flip(path: Path, manifest: dict[str, Any]) -> None:
    """Change a bit in the middle of the longest range."""
    offset, length, _ = max(manifest["checksums"][path.name], key=lambda entry: entry[1])
    data = bytearray(path.read_bytes())
    data[offset + length // 2] ^= 4
    path.write_bytes(data)


def full_disk(save: Callable[[], Any]) -> str:
    """Return the error of a save while files on rank 1 are limited to 2000 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        return message_of(save)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def thread_fails(checkpointer: Checkpointer, state: TrainingState, root: Path) -> str:
    """Fail writes of helper threads on rank 1 only."""
    write = storage._HashedFile.write

    def failing(file: Any, data: Any) -> int:
        if dist.get_rank() == 1 and threading.current_thread() is not threading.main_thread():
            raise OSError("no space for this thread")
        return write(file, data)

    with mock.patch.object(storage._HashedFile, "write", failing):
        return message_of(lambda: checkpointer.save(state, root, "global_step2"))


def client_state_back(checkpointer: Checkpointer, state: TrainingState, root: Path) -> Any:
    import argparse

    state_in = {"args": argparse.Namespace(lr=0.1), "seen": {1, 2}, "path": Path("a/b")}
    checkpointer.save(state, root, "client", client_state=state_in, save_latest=False)
    _, back = checkpointer.load(state, root, "client")
    return back is not None and {name: back[name] for name in state_in} == state_in


def asynchronous(state: TrainingState, root: Path) -> dict[str, Any]:
    """Asynchronous saves store the values at the call, also if they change before the write."""
    checkpointer = Checkpointer(asynchronous=True)
    weight = next(iter(state.trained().values()))
    with torch.no_grad():
        weight.fill_(1.0)
    gate = threading.Event()
    write = checkpointer._write
    checkpointer._write = lambda *a: (gate.wait(scaled(60)), write(*a))[1]  # pyright: ignore[reportAttributeAccessIssue]
    values = [1]
    checkpointer.save(state, root, "global_step5", client_state={"seen": values})
    with torch.no_grad():
        weight.fill_(2.0)
    values.append(2)
    waited = not (root / "latest").exists()
    gate.set()
    checkpointer.wait()
    _, client_state = checkpointer.load(state, root)
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    saved = bool((local == 1.0).all()) and client_state is not None and client_state["seen"] == [1]
    checkpointer._write = write
    if dist.get_rank() == 0:
        shutil.rmtree(root)
        root.write_text("in the way")
    dist.barrier()
    checkpointer.save(state, root, "global_step6")
    failed = message_of(checkpointer.wait)
    checkpointer.close()
    return {"async returned early": waited, "async saved": saved, "async failure": failed}


def retained(state: TrainingState, root: Path) -> dict[str, Any]:
    checkpointer = Checkpointer(keep=2)
    for step in range(1, 5):
        checkpointer.save(state, root, f"global_step{step}", save_latest=step == 1)
    return {"retained": checkpoints(root), "retained files": sorted(p.name for p in root.iterdir())}


def frozen(root: Path) -> dict[str, Any]:
    checkpointer, state = Checkpointer(), trained()
    checkpointer.save(state, root / "slim", "global_step1", exclude_frozen=True)
    strict = message_of(lambda: checkpointer.load(trained(stage=0), root / "slim"))
    return {"without frozen": strict}
