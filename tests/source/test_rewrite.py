"""Setting values keeps layout and comments of a file."""

import json

import hjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsconfig.source import read
from dsconfig.source.from_text import document_from_text
from dsconfig.source.override import with_overrides
from dsconfig.source.rewrite import changed_lines, with_values

TEXT = """{
    "train_batch_size": 8,  // per step
    "zero_optimization": {
        "stage": 2
    }
}
"""


def test_existing_value_is_replaced_in_place() -> None:
    document = document_from_text(TEXT, "ds.json")
    changed = with_values(document, {"/zero_optimization/stage": 3})
    assert changed.text == TEXT.replace('"stage": 2', '"stage": 3')


def test_missing_blocks_are_created() -> None:
    document = document_from_text(TEXT, "ds.json")
    values = {
        "/zero_optimization/stage": 3,
        "/zero_optimization/offload_optimizer/device": "cpu",
        "/gradient_clipping": 1.0,
    }
    changed = with_values(document, values)
    assert "// per step" in (changed.text or "")
    assert changed.value["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert changed_lines(document, changed) == [
        '      "zero_optimization": {',
        '-         "stage": 2',
        "-     }",
        '+         "stage": 3,',
        '+         "offload_optimizer": {',
        '+             "device": "cpu"',
        "+         }",
        "+     },",
        '+     "gradient_clipping": 1.0',
        "  }",
    ]


def test_non_object_is_replaced_by_object() -> None:
    document = document_from_text('{"fp16": true}', "ds.json")
    assert with_values(document, {"/fp16/enabled": True}).value == {"fp16": {"enabled": True}}


def test_dict_becomes_indented_json() -> None:
    changed = with_values(read({"train_batch_size": 8}), {"/train_batch_size": 16})
    assert changed.text == '{\n    "train_batch_size": 16\n}\n'


KEYS = st.sampled_from(["stage", "a", "b", "offload"])
VALUES = st.recursive(
    st.integers(0, 9) | st.booleans() | st.just("cpu"),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=3), VALUES), min_size=1, max_size=3),
    st.sampled_from([None, 2, 4]),
)
def test_values_equal_those_of_overrides(config, changes, indent) -> None:
    document = document_from_text(json.dumps(config, indent=indent), "ds.json")
    for path, value in changes:
        try:
            expected = with_overrides(document, [f"{'.'.join(path)}={json.dumps(value)}"])
        except ValueError:
            return
        document = with_values(document, {"/" + "/".join(path): value})
        assert document.value == expected.value
        assert hjson.loads(document.text) == expected.value


@pytest.mark.parametrize("text", ["{}", "{\n}", '{"a": {}}', '{"a": 1 /* why */}', "{a: 1\n}"])
def test_insertion_into_any_layout_stays_readable(text: str) -> None:
    changed = with_values(document_from_text(text, "ds.json"), {"/zero_optimization/stage": 3})
    assert not changed.is_broken
    assert changed.value["zero_optimization"] == {"stage": 3}
