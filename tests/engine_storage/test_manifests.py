"""A manifest with a field of another type is refused, with its file and the field."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsengine.checkpoints import CheckpointError
from dsengine.checkpoints.manifest import FORMAT, FORMAT_VERSION, MANIFEST, Manifest, read_manifest

WHOLE: dict[str, Any] = {
    "tag": "global_step1",
    "weights": {"weight": [2, 3]},
    "excluded": ["bias"],
    "buffers": ["weight"],
    "tied": {"head": "weight"},
    "files": {"data": 8},
    "checksums": {"data": [[0, 8, "0f"]]},
    "checksum": "xxh3_64",
    "description": {"stage": 1, "global_steps": 1, "precision": "bf16", "config": {}, "axes": {}},
    "format": FORMAT,
    "format_version": FORMAT_VERSION,
}
OTHERS = [None, 5, 0.5, True, "text", [1], ["a"], [[1]], {"a": None}, {"a": "b"}, {"a": [None]}]


def read(folder: Path, content: dict[str, Any]) -> str:
    (folder / MANIFEST).write_text(json.dumps(content))
    try:
        read_manifest(folder, check_files=False)
    except CheckpointError as error:
        return str(error)
    return ""


def test_whole_manifest_is_read(tmp_path: Path) -> None:
    assert set(WHOLE) == set(Manifest.__dataclass_fields__)
    assert read(tmp_path, WHOLE) == ""


@given(name=st.sampled_from(sorted(WHOLE)), value=st.sampled_from(OTHERS))
def test_field_of_another_type_is_named(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: Any
) -> None:
    folder = tmp_path_factory.mktemp("manifest")
    message = read(folder, WHOLE | {name: value})
    if type(value) is type(WHOLE[name]):
        assert not message or MANIFEST in message
    elif name not in ("format", "format_version"):
        assert f"{MANIFEST}: the field {name} has the invalid value" in message
    else:
        assert MANIFEST in message


@pytest.mark.parametrize("name", sorted(WHOLE["description"]))
def test_entry_of_the_description_is_named(tmp_path: Path, name: str) -> None:
    for value in (None, 0.5, True, [1]):
        message = read(tmp_path, WHOLE | {"description": WHOLE["description"] | {name: value}})
        assert f"the field description.{name} has the invalid value" in message


@pytest.mark.parametrize("name", ["tag", "weights"])
def test_missing_field_is_named(tmp_path: Path, name: str) -> None:
    content = {key: value for key, value in WHOLE.items() if key != name}
    assert f"the field {name} is missing" in read(tmp_path, content)
