"""Parsing and ordering of release numbers."""

import re

import pytest

import dsconfig
from dsconfig.schema import NEWEST, OLDEST, Version
from dsconfig.schema.version import known_release


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.19.8", (0, 19, 8)),
        ("v0.19", (0, 19, 0)),
        (" 0.14.4+cu121 ", (0, 14, 4)),
        ("0.16.0rc1", (0, 16, 0)),
        ("4.46.2rc1", (4, 46, 2)),
        ("4.46.2.rc1", (4, 46, 2)),
        ("4.46rc1", (4, 46, 0)),
        ("4.49.0.dev0", (4, 49, 0)),
        ("0.19.9.dev20260101+g1a2b3c4", (0, 19, 9)),
        ("0.16.4.post1", (0, 16, 4)),
        ("0.16.4-1", (0, 16, 4)),
        ("0.19.8+cu128", (0, 19, 8)),
        ("0.14.5+git.ab12cd3.master", (0, 14, 5)),
        ("0.19.8.1", (0, 19, 8)),
        ("V0.19.8", (0, 19, 8)),
        ("0.19.x", None),
        ("0.19.8-broken", None),
        ("0.19.8 or later", None),
        ("٠.١٩.٨", None),
        ("newest", None),
        ("", None),
    ],
)
def test_parse_version(text: str, version: tuple[int, int, int] | None) -> None:
    if version is None:
        with pytest.raises(ValueError, match="write one like"):
            Version.parse(text)
    else:
        assert Version.parse(text) == version


def test_versions_are_ordered_numerically() -> None:
    assert Version.parse("0.9.5") < Version.parse("0.10.0") < Version.parse("0.10.3")
    assert OLDEST < NEWEST
    assert str(Version(0, 19, 8)) == "0.19.8"


@pytest.mark.parametrize("text", ["0.3.0", "0.16.9", "v0.14", "0.19.8+cu128", "0.15.4.post1"])
def test_known_releases_are_accepted(text: str) -> None:
    assert known_release(text) == Version.parse(text)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [("0.99", "0.19.8"), ("1.0", "0.19.8"), ("0.16.12", "0.16.9"), ("0.2.5", "0.3.0")],
)
def test_unknown_release_names_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"nearest: {nearest} (known releases: 0.3.0")):
        known_release(text)


def test_library_rejects_unknown_releases() -> None:
    for call in (
        lambda: dsconfig.validate({}, version="0.99"),
        lambda: dsconfig.resolve({}, version="0.99"),
        lambda: dsconfig.diff({}, from_version="0.99"),
    ):
        with pytest.raises(ValueError, match="is not a known DeepSpeed release"):
            call()
