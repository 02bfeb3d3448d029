"""``--set path.to.key=value``."""

import pytest

from dsconfig.source import read, with_overrides

TEXT = '{"zero_optimization": {"stage": 2}, "betas": [0.9, 0.95], "fp16": {"enabled": true}}'


@pytest.mark.parametrize(
    ("override", "pointer", "value"),
    [
        ("zero_optimization.stage=3", ("zero_optimization", "stage"), 3),
        ("/zero_optimization/stage=3", ("zero_optimization", "stage"), 3),
        ("bf16.enabled=true", ("bf16", "enabled"), True),
        ("train_batch_size=auto", ("train_batch_size",), "auto"),
        ("x=5e8", ("x",), 5e8),
        ("x=a=b", ("x",), "a=b"),
        ("x=", ("x",), ""),
        ("betas=[0.8, 0.9]", ("betas",), [0.8, 0.9]),
        ("x=" + "[" * 5000, ("x",), "[" * 5000),
    ],
)
def test_override_value_is_json_or_string(
    override: str, pointer: tuple[str, ...], value: object
) -> None:
    found = with_overrides(read(TEXT), [override]).value
    for part in pointer:
        found = found[part]
    assert found == value


def test_override_of_list_items() -> None:
    document = with_overrides(read(TEXT), ["betas.1=0.99"])
    assert document.value["betas"] == [0.9, 0.99]


def test_override_keeps_other_positions_and_original() -> None:
    before = read(TEXT)
    after = with_overrides(before, ["zero_optimization={}"])
    assert before.value["zero_optimization"] == {"stage": 2}
    assert after.range("/fp16/enabled") == before.range("/fp16/enabled")
    assert "/zero_optimization/stage" not in after.spans
    assert with_overrides(before, []) is before


@pytest.mark.parametrize(
    "override", ["stage", "=3", "betas.9=1", "betas.x.y=1", "fp16.enabled.x=1", "betas.0.x=1"]
)
def test_invalid_override_explains_syntax(override: str) -> None:
    with pytest.raises(ValueError, match="--set"):
        with_overrides(read(TEXT), [override])


@pytest.mark.parametrize(
    ("text", "override", "whose"),
    [
        (TEXT, "betas.x.y=1", "betas"),
        (TEXT, "fp16.enabled.x=1", "fp16.enabled"),
        ("[1]", "stage=3", "the config"),
        ("[1]", "zero_optimization.stage=3", "the config"),
    ],
)
def test_override_through_non_object_names_it(text: str, override: str, whose: str) -> None:
    with pytest.raises(ValueError, match=f": {whose} is not an object$"):
        with_overrides(read(text), [override])
