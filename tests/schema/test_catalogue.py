"""Key lookup by path, alias, list item, user-defined name and optimizer type."""

import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dsconfig import schema
from dsconfig.schema import (
    DSConfig,
    Key,
    KeyStatus,
    Version,
    find,
    key,
    key_index,
    keys,
    paths,
    strict_at,
    strict_since,
)
from dsconfig.schema.catalogue import blocks_of
from dsconfig.schema.paths import KeyPath
from dsconfig.source.pointer import split


def known(path: str) -> Key:
    found = key(path)
    assert found is not None, path
    return found


def test_path_resolves_to_key() -> None:
    found = known("zero_optimization.offload_param.device")
    assert found.path == "zero_optimization.offload_param.device"
    assert found.choices == ("cpu", "none", "nvme")


@pytest.mark.parametrize(
    "path", ["nothing", "fp16.nothing", "fp16.enabled.deeper", "zero_optimization.x.y"]
)
def test_unknown_path_returns_none(path: str) -> None:
    assert key(path) is None


def test_alias_resolves_to_key() -> None:
    assert known("zero_optimization.max_live_parameters").name == "stage3_max_live_parameters"


def test_user_defined_names_and_list_items() -> None:
    quantizer = "weight_quantization.post_init_quant"
    assert known(f"{quantizer}.*.num_bits") is known(f"{quantizer}.q_proj.num_bits")
    specs = "tensor_parallel.partition_config.layer_specs"
    assert known(f"{specs}[].patterns") is known(f"{specs}.0.patterns")
    assert find(["weight_quantization", "post_init_quant", "a.b", "num_bits"]) is not None


def test_argument_depends_on_type() -> None:
    def default(of_type: str | None) -> object:
        found = key("optimizer.params.lr", of_type=of_type)
        return found.default if found else None

    assert [default(name) for name in (None, "Adagrad", "muon", "unknown")] == [
        0.001,
        0.01,
        0.02,
        None,
    ]


def test_argument_lists_types_it_applies_to() -> None:
    assert known("optimizer.params.ns_method").applies_to == ("Muon",)
    assert known("fp16.enabled").applies_to == ()


def test_key_attributes() -> None:
    found = known("zero_optimization.reduce_bucket_size")
    assert (found.type, found.unit, found.default) == ("integer", "elements", 500_000_000)
    assert found.auto_filled_by == ("transformers", "accelerate")
    assert found.checked_at(Version(0, 7, 0)) and not found.checked_at(Version(0, 6, 7))
    assert not found.is_block and known("zero_optimization").is_block
    assert known("aio").type == "object|null"


def test_read_at_release() -> None:
    amp, eigenvalue, autocast = known("amp"), known("eigenvalue"), known("torch_autocast")
    assert [amp.read_at(Version.parse(v)) for v in ("0.3.0", "0.19.7", "0.19.8")] == [
        True,
        True,
        False,
    ]
    assert [autocast.read_at(Version.parse(v)) for v in ("0.17.1", "0.17.2")] == [False, True]
    assert not eigenvalue.read_at(Version(0, 10, 0))


def test_keys_are_unique_and_parents_come_first() -> None:
    paths = [each.path for each in keys()]
    assert len(paths) == len(set(paths)) > 700
    assert paths.index("fp16") < paths.index("fp16.enabled")


def test_external_and_docs_only_keys() -> None:
    assert known("msamp").status is KeyStatus.EXTERNAL
    assert known("aio.thread_count").status is KeyStatus.DOCS_ONLY
    assert known("quantize_training.quantize_bits.start_bits").status is KeyStatus.REMOVED


def test_closed_blocks() -> None:
    assert strict_since("fp16") == ((Version(0, 17, 1), None),)
    assert strict_since("compile") == (
        (Version(0, 13, 2), Version(0, 14, 3)),
        (Version(0, 16, 6), None),
    )
    assert strict_since("") == ()
    assert strict_at("zero_optimization.offload_param", schema.NEWEST)
    assert not strict_at("optimizer", schema.NEWEST)


@pytest.mark.parametrize("path", ["nothing", "train_batch_size"])
def test_only_blocks_are_closed(path: str) -> None:
    with pytest.raises(KeyError, match=path):
        strict_since(path)


def test_every_key_has_doc() -> None:
    assert [each.path for each in keys() if not each.doc.endswith(".")] == []


def test_every_default_is_valid() -> None:
    wrong = {each.path for each in keys() if not _is_valid(each)}
    assert {path for path in wrong if not path.endswith(".modules")} == {"tensor_parallel.dtype"}
    # No text can hold a dtype; "*" stood for all modules where a list was expected.
    assert all(known(path).default == "*" for path in wrong if path.endswith(".modules"))


def _is_valid(each: Key) -> bool:
    parent = re.sub(r"(\.\*|\[\])?\.?\w+$", "", each.path)
    owner, *others = blocks_of(known(parent).shape) if parent else (DSConfig,)
    if each.required or each.default is None or others:
        return True
    try:
        owner.model_validate({each.name: each.default})
    except ValidationError as error:
        return all(fault["loc"][0] != each.name for fault in error.errors())
    return True


def test_module_exports() -> None:
    assert {name for name in schema.__all__ if getattr(schema, name, None) is None} == set()
    with pytest.raises(AttributeError, match="nothing"):
        _ = schema.nothing


def test_key_index_entries_resolve_to_keys() -> None:
    paths = [
        path for name in key_index.declared()["blocks_with"] for path in key_index.paths_of(name)
    ]
    assert ("zero_optimization", "overlap_comm") in paths
    assert ("zero_optimization", "max_live_parameters") in paths  # an alias
    for path in paths:
        found = find(path)
        assert found is not None and found.status is KeyStatus.LIVE
        assert found.until is None and key_index.is_live(path)


@pytest.mark.parametrize(
    "path", ["amp", "amp.enabled", "overlap_comm", "zero_optimization.grad_hooks"]
)
def test_removed_or_misplaced_key_is_not_live(path: str) -> None:
    assert not key_index.is_live(KeyPath.parse(path))


NAMES_OF_A_PATH = st.lists(st.text(max_size=6), max_size=4)
STAGE = paths.ROOT / "zero_optimization" / "stage"


def declared(value: Any) -> list[KeyPath]:
    """Return the paths in a constant of the module."""
    if isinstance(value, KeyPath):
        return [value]
    values: Any = value.values() if isinstance(value, dict) else value
    return [path for path in values if isinstance(path, KeyPath)]


def test_every_named_key_exists() -> None:
    constants = {name: value for name, value in vars(paths).items() if name.isupper()}
    found = {name: declared(value) for name, value in constants.items() if name != "ROOT"}
    assert [name for name, each in found.items() if not each] == []
    assert [str(path) for each in found.values() for path in each if find(path) is None] == []


def test_three_notations_of_a_path() -> None:
    assert STAGE == ("zero_optimization", "stage")
    assert (STAGE.dotted, STAGE.pointer) == ("zero_optimization.stage", "/zero_optimization/stage")
    assert f"{STAGE} is 2" == "zero_optimization.stage is 2"
    assert (STAGE.parent, STAGE.name) == (("zero_optimization",), "stage")
    assert paths.ROOT.parent == paths.ROOT and paths.ROOT.pointer == paths.ROOT.dotted == ""


def test_both_notations_are_parsed() -> None:
    assert KeyPath.parse(STAGE.dotted) == KeyPath.parse(STAGE.pointer) == STAGE
    assert KeyPath.parse("") == paths.ROOT


@given(NAMES_OF_A_PATH)
def test_pointer_and_pickle_keep_every_name(names: list[str]) -> None:
    path = KeyPath(names)
    assert KeyPath.parse(path.pointer) == split(path.pointer) == path
    copy = pickle.loads(pickle.dumps(path))
    assert copy == path and type(copy) is KeyPath
    assert hash(path) == hash(tuple(names))
