"""Checkpoint files that try to run code or to change classes and functions of this process."""

import argparse
import collections
import copyreg
import inspect
import os
import pathlib
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import metadata as torch_metadata

from dsengine.checkpoints import CheckpointError
from dsengine.checkpoints.deepspeed_layout import files
from dsengine.checkpoints.deepspeed_layout.read import read_checkpoint
from dsengine.checkpoints.restricted_pickle import Name
from dsengine.checkpoints.small_states import load as load_small_states
from dsengine.checkpoints.storage import SafeFileSystemReader
from dsengine.torch_private.pickles import named_in_checkpoint_metadata, named_in_tensor_files

HEAD, END = b"\x80\x02", b"."
DICT, TUPLE, NONE, MARK = b"}", b")", b"N", b"("
REDUCE, BUILD, NEWOBJ = b"R", b"b", b"\x81"


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def tuple_of(*items: bytes) -> bytes:
    return MARK + b"".join(items) + b"t"


def dict_of(**items: bytes) -> bytes:
    return DICT + MARK + b"".join(text(key) + value for key, value in items.items()) + b"u"


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def storage(count: int = 2, kind: bytes = named("torch", "FloatStorage"), key: str = "0") -> bytes:
    return tuple_of(text("storage"), kind, text(key), text("cpu"), number(count)) + b"Q"


def tensor(*, size: int = 2, offset: int = 0, stride: int = 1, hooks: bytes = DICT) -> bytes:
    arguments = (storage(), number(offset), number(size) + b"\x85", number(stride) + b"\x85")
    return TENSOR + tuple_of(*arguments, b"\x89", hooks) + REDUCE


NAMESPACE = named("argparse", "Namespace")
TENSOR = named("torch._utils", "_rebuild_tensor_v2")
SCALER = named("deepspeed.runtime.fp16.loss_scaler", "LossScaler")
STATE = dict_of(planted=number(1))
SLOTS = tuple_of(NONE, dict_of(planted=number(1)))
NEW_SCALER = SCALER + TUPLE + NEWOBJ

ATTACKS: dict[str, bytes] = {
    "attribute of argparse.Namespace": NAMESPACE + STATE + BUILD,
    "slot of argparse.Namespace": NAMESPACE + SLOTS + BUILD,
    "new constructor of argparse.Namespace": NAMESPACE
    + tuple_of(NONE, dict_of(__init__=SCALER))
    + BUILD,
    "attribute of a torch function": TENSOR + STATE + BUILD,
    "defaults of a torch function": TENSOR
    + tuple_of(NONE, dict_of(__defaults__=number(1) + b"\x85"))
    + BUILD,
    "code of a torch function": TENSOR
    + tuple_of(NONE, dict_of(__code__=named("torch._utils", "_rebuild_parameter")))
    + BUILD,
    "attribute of _get_layout": named("torch.serialization", "_get_layout") + STATE + BUILD,
    "attribute of _rebuild_from_type_v2": named("torch._tensor", "_rebuild_from_type_v2")
    + STATE
    + BUILD,
    "attribute of torch.Tensor": named("torch", "Tensor") + STATE + BUILD,
    "slot of torch.Tensor": named("torch", "Tensor") + SLOTS + BUILD,
    "attribute of Parameter": named("torch.nn.parameter", "Parameter") + STATE + BUILD,
    "attribute of torch.Size": named("torch", "Size") + SLOTS + BUILD,
    "attribute of a dtype": named("torch", "float32") + SLOTS + BUILD,
    "attribute of a storage": named("torch", "FloatStorage") + SLOTS + BUILD,
    "attribute of a DeepSpeed class": SCALER + STATE + BUILD,
    "slot of a DeepSpeed class": SCALER + SLOTS + BUILD,
    "attribute of OrderedDict": named("collections", "OrderedDict") + SLOTS + BUILD,
    "attribute of a path class": named("pathlib", "PosixPath") + SLOTS + BUILD,
    "attribute of a builtin": named("builtins", "dict") + SLOTS + BUILD,
    "class from the memo": NAMESPACE
    + b"q\x01"
    + TUPLE
    + REDUCE
    + STATE
    + BUILD
    + b"0h\x01"
    + STATE
    + BUILD,
    "duplicated class": NAMESPACE + b"2" + STATE + BUILD + b"0",
    "class in a container": b"]" + NAMESPACE + b"a" + NAMESPACE + SLOTS + BUILD + b"a",
    "state of a container": b"]" + STATE + BUILD,
    "state of a number": number(3) + SLOTS + BUILD,
    "state of a tensor": tensor() + tuple_of(storage(), number(0), TUPLE, TUPLE) + BUILD,
    "state of a path": named("pathlib", "PosixPath") + text("a") + b"\x85" + REDUCE + SLOTS + BUILD,
    "state without names": NAMESPACE + TUPLE + REDUCE + number(1) + BUILD,
    "state with numbers as names": NAMESPACE
    + TUPLE
    + REDUCE
    + DICT
    + number(1)
    + number(2)
    + b"s"
    + BUILD,
    "call of an object": NEW_SCALER + TUPLE + REDUCE,
    "call of a text": text("os.system") + text("true") + b"\x85" + REDUCE,
    "call of a dtype": named("torch", "float32") + TUPLE + REDUCE,
    "call of torch.Tensor": named("torch", "Tensor") + number(2**30) + b"\x85" + REDUCE,
    "new torch.Tensor": named("torch", "Tensor") + number(2**30) + b"\x85" + NEWOBJ,
    "os.system": named("os", "system") + text("true") + b"\x85" + REDUCE,
    "posix.system": text("posix") + text("system") + b"\x93" + text("true") + b"\x85" + REDUCE,
    "builtins.eval": named("builtins", "eval") + text("1") + b"\x85" + REDUCE,
    "Python 2 eval": named("__builtin__", "eval") + text("1") + b"\x85" + REDUCE,
    "builtins.getattr": named("builtins", "getattr") + tuple_of(NAMESPACE, text("x")) + REDUCE,
    "dotted name": text("argparse") + text("Namespace.__init__") + b"\x93",
    "torch.load": named("torch", "load") + text("x") + b"\x85" + REDUCE,
    "torch.hub": named("torch.hub", "load") + text("x") + b"\x85" + REDUCE,
    "torch.jit": named("torch.jit", "load") + text("x") + b"\x85" + REDUCE,
    "module that starts like deepspeed": named("deepspeed_evil", "run") + TUPLE + REDUCE,
    "function behind _rebuild_from_type_v2": named("torch._tensor", "_rebuild_from_type_v2")
    + tuple_of(named("os", "getcwd"), named("torch", "Tensor"), TUPLE, DICT)
    + REDUCE,
    "text behind _rebuild_from_type_v2": named("torch._tensor", "_rebuild_from_type_v2")
    + tuple_of(text("exit"), named("torch", "Tensor"), TUPLE, DICT)
    + REDUCE,
    "layout that is a module": named("torch.serialization", "_get_layout")
    + text("torch.os")
    + b"\x85"
    + REDUCE,
    "INST": MARK + text("true") + b"ios\nsystem\n",
    "INST of an allowed class": MARK + b"iargparse\nNamespace\n",
    "OBJ": MARK + NAMESPACE + b"o",
    "registered extension": b"\x82\xf0" + TUPLE + REDUCE,
    "items of an object": NEW_SCALER + text("x") + number(1) + b"s",
    "items of a class": NAMESPACE + MARK + text("x") + number(1) + b"u",
    "items appended to an object": NEW_SCALER + number(1) + b"a",
    "items appended to a class": NAMESPACE + MARK + number(1) + b"e",
    "items added to a class": NAMESPACE + MARK + number(1) + b"\x90",
    "written tensor": tensor() + number(0) + number(7) + b"s",
    "key without value": DICT + MARK + text("x") + b"u",
    "unhashable key": DICT + b"]" + number(1) + b"s",
    "integer of 5,000 digits": named("builtins", "int") + text("9" * 5000) + b"\x85" + REDUCE,
    "huge bytearray": b"\x96" + struct.pack("<Q", 2**62),
    "huge memo index": number(1) + b"r" + b"\xff" * 4 + b"j" + b"\xfe" + b"\xff" * 3,
    "buffer out of band": b"\x97",
    "unknown opcode": b"\xfa",
    "empty stack": BUILD,
    "text as persistent id": b"Pstorage\n",
    "persistent id that is no storage": number(1) + b"\x85Q",
    "storage of a class": storage(kind=NAMESPACE),
    "storage of an object": storage(kind=NEW_SCALER),
    "storage that is missing": storage(key="../../data.pkl"),
    "tensor beyond its storage": tensor(size=10**6),
    "negative offset": tensor(offset=-4),
    "negative stride": tensor(stride=-1),
}


HARMLESS_TO_TORCH = {
    "state of a tensor",
    "state with numbers as names",
    "call of torch.Tensor",
    "new torch.Tensor",
}
"""What torch's own restricted unpickler, which reads small states, accepts: new objects."""


def pt_file(path: Path, content: bytes) -> None:
    """Write a ``torch.save`` file with this pickle and one storage of two floats."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", HEAD + content + END)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/data/0", struct.pack("<2f", 1.0, 2.0))


def deepspeed_file(folder: Path, content: bytes) -> None:
    folder.mkdir()
    pt_file(folder / "mp_rank_00_model_states.pt", content)
    read_checkpoint(folder)


def metadata_file(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / ".metadata").write_bytes(HEAD + content + END)
    SafeFileSystemReader(folder).read_metadata()


def small_states(folder: Path, content: bytes) -> None:
    folder.mkdir()
    pt_file(folder / "training_state.pt", content)
    load_small_states(folder / "training_state.pt")


READERS: list[Callable[[Path, bytes], None]] = [deepspeed_file, metadata_file, small_states]


def reachable() -> Iterator[Any]:
    """Yield the classes and functions that names in checkpoints may refer to."""
    yield from (argparse.Namespace, collections.OrderedDict, pathlib.PurePosixPath, dict)
    yield from (Tensor, nn.Parameter, torch.Size, torch.float32, torch.FloatStorage)
    yield from vars(sys.modules["torch._utils"]).values()
    yield from (torch.serialization._get_layout, files.Record, Name)
    yield vars(sys.modules["torch._tensor"])["_rebuild_from_type_v2"]
    yield from named_in_checkpoint_metadata().values()
    yield from named_in_tensor_files().values()
    yield from torch_metadata._MEM_FORMAT_ENCODING


def attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    if isinstance(value, FunctionType):
        found |= {name: getattr(value, name) for name in ("__code__", "__defaults__")}
    return {name: id(entry) for name, entry in found.items()}


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if a class or function changes; register an extension code for ``os.getcwd``."""
    monkeypatch.setitem(copyreg.__dict__["_inverted_registry"], 0xF0, ("os", "getcwd"))
    monkeypatch.setitem(copyreg.__dict__["_extension_cache"], 0xF0, os.getcwd)
    before = [attributes(value) for value in reachable()]
    yield
    assert [attributes(value) for value in reachable()] == before


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("reader", READERS, ids=[reader.__name__ for reader in READERS])
@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_is_refused_and_changes_nothing(
    tmp_path: Path, attack: str, reader: Callable[[Path, bytes], None]
) -> None:
    if reader is small_states and attack in HARMLESS_TO_TORCH:
        reader(tmp_path / "global_step1", ATTACKS[attack])
        return
    with pytest.raises(CheckpointError):
        reader(tmp_path / "global_step1", ATTACKS[attack])


METADATA = "torch.distributed.checkpoint.metadata"
METADATA_ATTACKS = {
    "attribute of a class": named(METADATA, "Metadata") + STATE + BUILD,
    "slot of a frozen class": named(METADATA, "MetadataIndex") + SLOTS + BUILD,
    "attribute of an enum": named(METADATA, "_MEM_FORMAT_ENCODING") + SLOTS + BUILD,
    "attribute of a member of an enum": named(METADATA, "_MEM_FORMAT_ENCODING")
    + number(0)
    + b"\x85"
    + REDUCE
    + STATE
    + BUILD,
    "class of an object": named(METADATA, "Metadata")
    + TUPLE
    + NEWOBJ
    + tuple_of(NONE, dict_of(__class__=named(METADATA, "StorageMeta")))
    + BUILD,
    "object of another class": named(METADATA, "StorageMeta") + TUPLE + NEWOBJ,
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("attack", METADATA_ATTACKS)
def test_attack_on_metadata_classes_is_refused(tmp_path: Path, attack: str) -> None:
    with pytest.raises(CheckpointError):
        metadata_file(tmp_path / "global_step1", METADATA_ATTACKS[attack])


def test_torchscript_archive_is_not_run(tmp_path: Path) -> None:
    """``torch.load`` would pass it to ``torch.jit.load``, which runs its ``__setstate__``."""
    proof = tmp_path / "proof"

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.path = str(proof)

        @torch.jit.export
        def __getstate__(self) -> tuple[str, bool]:  # pyright: ignore[reportIncompatibleMethodOverride]
            return self.path, self.training

        @torch.jit.export
        def __setstate__(self, state: tuple[str, bool]) -> None:
            self.path = state[0]
            written = torch.from_file(self.path, shared=True, size=4)
            self.training = state[1] and written.numel() > 0

        def forward(self, x: Tensor) -> Tensor:
            return x

    folder = tmp_path / "global_step1"
    folder.mkdir()
    file = folder / "mp_rank_00_model_states.pt"
    torch.jit.save(torch.jit.script(Writes()), str(file))
    torch.jit.load(str(file))
    assert proof.exists()
    proof.unlink()
    with pytest.raises(CheckpointError, match="TorchScript archive"):
        read_checkpoint(folder)
    with pytest.raises(CheckpointError):
        load_small_states(file)
    assert not proof.exists()


def test_hooks_of_a_tensor_are_dropped(tmp_path: Path) -> None:
    pt_file(tmp_path / "x.pt", tensor(hooks=DICT + number(0) + NAMESPACE + b"s"))
    read = files.read_file(tmp_path / "x.pt")
    assert read.tolist() == [1.0, 2.0]
    assert not read._backward_hooks and not read.requires_grad


def test_attributes_of_a_dict_do_not_shadow_its_methods(tmp_path: Path) -> None:
    ordered = named("collections", "OrderedDict") + TUPLE + REDUCE
    pt_file(tmp_path / "x.pt", ordered + dict_of(items=NAMESPACE, keys=number(1)) + BUILD)
    assert list(files.read_file(tmp_path / "x.pt").items()) == []


def test_class_in_a_file_is_read_as_its_name(tmp_path: Path) -> None:
    pt_file(tmp_path / "x.pt", NAMESPACE)
    read = files.read_file(tmp_path / "x.pt")
    assert not inspect.isclass(read)
    assert repr(read) == "argparse.Namespace"


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_objects_are_read(tmp_path: Path, protocol: int) -> None:
    """What scripts put into ``client_state``, as DeepSpeed saves it."""
    state = collections.OrderedDict(weight=1.0)
    vars(state)["_metadata"] = {"version": 1}
    values = {
        "args": argparse.Namespace(lr=1e-3, nested=argparse.Namespace(names=["a"])),
        "state": state,
        "set": {1, 2},
        "frozen": frozenset({3}),
        "complex": 1 + 2j,
        "slice": slice(1, 5, 2),
        "counts": collections.defaultdict(int, {"a": 1}),
        "lists": collections.defaultdict(list, {"a": [1]}),
        "bytes": b"\x00\xff",
        "large": 2**100,
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "layout": torch.strided,
    }
    torch.save(values, tmp_path / "x.pt", pickle_protocol=protocol)
    read = files.read_file(tmp_path / "x.pt")
    assert read == values
    read["lists"]["new"].append(1)
    assert read["counts"]["new"] == 0


def test_parameters_and_views_are_read(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    values = {"weight": nn.Parameter(base), "view": base[1:, ::2], "bf16": base.bfloat16()}
    torch.save(values, tmp_path / "x.pt")
    read = files.read_file(tmp_path / "x.pt")
    assert isinstance(read["weight"], nn.Parameter)
    assert all(torch.equal(read[name], value) for name, value in values.items())


def test_unknown_enum_is_refused(tmp_path: Path) -> None:
    torch.save(Colour.RED, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="Colour, which is not allowed"):
        files.read_file(tmp_path / "x.pt")


def test_every_opcode_is_known() -> None:
    """A new opcode of Python could refer to code in another way."""
    known = {code for code in vars(pickle).values() if isinstance(code, bytes) and len(code) == 1}
    handled = {bytes([code]) for code in files._Unpickler.dispatch}
    reviewed = 68
    assert handled <= known and len(handled) == reviewed
