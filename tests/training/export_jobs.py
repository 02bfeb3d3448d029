"""Jobs that iterate over full weights. Each function runs on every rank."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

import dsengine
from dsengine.observation.memory import LiveBytes
from training import axes, models
from training.jobs import window
from training.sequence_memory_jobs import Head
from training.tensor_jobs import config_of, model_of


def built(settings: dict[str, Any], steps: int) -> Any:
    """Return an engine of the tied model, trained for ``steps`` windows."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    for step in range(steps):
        window(engine, step)
    return engine


def different(found: dict[str, Tensor], saved: dict[str, Tensor]) -> list[str]:
    """Return the names in only one of the two, or with other values."""
    names = sorted(found.keys() ^ saved.keys())
    return names + [n for n in saved if n in found and not torch.equal(found[n], saved[n])]


def as_saved(settings: dict[str, Any], folder: str, steps: int = 2) -> dict[str, Any]:
    """Compare iterations with the file of ``save_16bit_model``; write to the tensors, train on."""
    if "sequence_parallel_size" in settings:
        engine, *_ = dsengine.initialize(model=Head(tiled=False), config=settings)
    else:
        engine = built(settings, steps)
    assert engine.save_16bit_model(folder)
    dist.barrier()
    saved = load_file(Path(folder) / "model.safetensors")
    result: dict[str, Any] = {"different": [], "same order": True}
    metadata = [tuple(each) for each in engine.weight_metadata(names="module")]
    for nbytes in (1, 5000, 10**9):
        taken = list(engine.iter_weights(bucket_bytes=nbytes, names="module"))
        result["different"] += different(dict(taken), saved)
        described = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in taken]
        result["same order"] &= described == metadata
        for _, tensor in taken:  # each in memory of its own
            tensor.fill_(7)
    checkpoint = dict(engine.iter_weights())
    result["different"] += different(checkpoint, saved)  # not a model of transformers
    wide = dict(engine.iter_weights(dtype=torch.float64))
    result["wide"] = {tensor.dtype for tensor in wide.values()} == {torch.float64}
    result["loss"] = [window(engine, 9)] if steps else []
    engine.destroy()
    return result


def of_split_layers(kind: str, stage: int) -> list[str]:
    """Return the exported weights of split layers that differ from those before the split."""
    before = {name: tensor.clone() for name, tensor in model_of(kind).state_dict().items()}
    settings = config_of(kind, stage, ranks=2)
    engine, *_ = dsengine.initialize(model=model_of(kind), config=settings)
    found = dict(engine.iter_weights(bucket_bytes=5000, names="module"))
    names = [each.name for each in engine.weight_metadata(names="module")]
    checkpoint = dict(engine.iter_weights())
    engine.destroy()
    assert list(found) == names
    return different(found, before) + different(checkpoint, before)


def peak(settings: dict[str, Any], nbytes: int) -> dict[str, int]:
    """Return the peak bytes of an iteration beside what the engine holds, and its tensors' sizes.

    The caller keeps each tensor until it has the next one.
    """
    return _peak(built(settings, steps=0), nbytes)


def peak_of_divided_model(axis: str, stage: int, nbytes: int) -> dict[str, int]:
    """The same for an engine whose ranks divide the model."""
    return _peak(axes.started(axis, stage), nbytes)


def _peak(engine: Any, nbytes: int) -> dict[str, int]:
    list(engine.iter_weights())  # creates its group
    live = LiveBytes(torch.device("cpu"), existing=False)
    with live.measure("export"):
        for _, tensor in engine.iter_weights(bucket_bytes=nbytes):
            assert tensor.numel()
    sizes = [metadata.nbytes for metadata in engine.weight_metadata()]
    engine.destroy()
    return {"peak": live.peaks["export"], "largest": max(sizes), "total": sum(sizes)}


def left(settings: dict[str, Any], way: str) -> list[str]:
    """Let rank 1 leave an iteration in a ``way``; return the errors of this rank."""
    engine = built(settings, steps=1)
    is_leaving = dist.get_rank() == 1
    errors: list[str] = []

    def attempt(action: Any) -> None:
        try:
            action()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    def iterate(taken: int | None = None, **arguments: Any) -> None:
        for count, _ in enumerate(engine.iter_weights(bucket_bytes=1, **arguments), 1):
            if count == taken:
                break

    def call(method: Any) -> None:
        iterator = engine.iter_weights(bucket_bytes=1)
        next(iterator)
        method()

    def fail() -> None:
        for _ in engine.iter_weights(bucket_bytes=1):
            raise ValueError("the caller has failed")

    ways: dict[str, Any] = {
        "break": lambda: iterate(taken=3),
        "never started": lambda: engine.iter_weights(bucket_bytes=1).close(),
        "forward": lambda: call(lambda: engine(models.batch(0, 0, 1))),
        "save": lambda: call(lambda: engine.save_checkpoint("nowhere")),
        "destroy": lambda: call(engine.destroy),
        "raise": fail,
        "dtype": lambda: iterate(dtype=torch.float64),
        "again": lambda: [iterate(taken=3), iterate()],
    }
    attempt(ways[way] if is_leaving else iterate)
    if is_leaving and way in ("break", "raise"):  # a dropped iterator raises in the next call
        attempt(engine.iter_weights)
    if way != "destroy":
        complete = len(list(engine.iter_weights())) == len(engine.weight_metadata())
        assert complete and window(engine, 1)
    engine.destroy()
    return errors


def left_together(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave iterations on all ranks alike, or at the last tensor, and train between them."""
    engine = built(settings, steps=1)
    next(engine.iter_weights(bucket_bytes=1))
    first = engine.iter_weights(bucket_bytes=1)
    next(first)
    metadata = engine.weight_metadata()  # no other call: the iteration goes on
    next(first)
    losses = [window(engine, 1)]
    pairs = zip(metadata, engine.iter_weights(), strict=False)
    equal = all(each.name == name for each, (name, _) in pairs)
    losses.append(window(engine, 2))
    engine.destroy()
    return {"equal": equal, "left": list(first), "losses": losses}


def with_offloaded(settings: dict[str, Any], kinds: list[str]) -> str:
    """Export while ``kinds`` of states are offloaded; return the error of masters, "" for none."""
    engine = built(settings, steps=1)
    before = dict(engine.iter_weights())
    engine.offload_states(include=kinds)
    assert different(dict(engine.iter_weights()), before) == []
    error = ""
    try:
        engine.iter_weights(dtype=torch.float32)
    except RuntimeError as raised:
        error = str(raised)
    engine.reload_states()
    engine.destroy()
    return error


def refused(settings: dict[str, Any]) -> list[str]:
    """Return the errors of wrong arguments."""
    engine = built(settings, steps=0)
    errors: list[str] = []
    for arguments in (
        {"bucket_bytes": 0},
        {"dtype": torch.int8},
        {"dtype": "bf16"},
        {"lora": "fuse"},
        {"names": "original"},
        {"lora": "adapter"},
    ):
        try:
            engine.iter_weights(**arguments)
        except ValueError as error:
            errors.append(str(error))
    engine.destroy()
    return errors
