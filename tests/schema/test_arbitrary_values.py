"""Schema validation of arbitrary values raises nothing and locates each error."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsconfig.schema import NEWEST, ErrorKind, Version, errors, keys
from dsconfig.schema.meaning import meaning
from dsconfig.source.pointer import lookup

NAMES = sorted({key.name for key in keys()} | {"unknown", "a/b", "~", ""})
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just("auto")
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=25,
)
CONFIGS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6)
ABSENT = object()


@settings(max_examples=80)
@given(config=VALUES | CONFIGS)
def test_each_schema_error_has_a_position(config: Any) -> None:
    check_positions(config)


@pytest.mark.deep
@settings(max_examples=3000)
@given(config=VALUES | CONFIGS)
def test_each_schema_error_of_more_values_has_a_position(config: Any) -> None:
    check_positions(config)


def check_positions(config: Any) -> None:
    for error in errors(config):
        place = error.pointer
        if error.kind is ErrorKind.MISSING:
            place = place.rpartition("/")[0]
        assert lookup(config, place, ABSENT) is not ABSENT
        assert error.expected


RELEASES = st.sampled_from([NEWEST, Version(0, 14, 4), Version(0, 5, 0)])


@settings(max_examples=60)
@given(config=CONFIGS, release=RELEASES)
def test_every_setting_has_a_normalized_value(config: dict[str, Any], release: Version) -> None:
    check_settings(config, release)


@pytest.mark.deep
@settings(max_examples=3000)
@given(config=CONFIGS, release=RELEASES)
def test_every_setting_of_more_configs_has_a_normalized_value(
    config: dict[str, Any], release: Version
) -> None:
    check_settings(config, release)


def check_settings(config: dict[str, Any], release: Version) -> None:
    meant = meaning(config, release)
    assert all(
        meant.value(path) == value or value != value for path, value in meant.settings.items()
    )
    assert not set(meant.settings) & set(meant.unread)
