"""Release numbers: read, compared, found without importing DeepSpeed."""

import sys
from collections.abc import Iterator
from importlib import metadata

import pytest

from dsconfig.schema import NEWEST, OLDEST, Version, installed_or_newest


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.19.8", (0, 19, 8)),
        ("v0.19", (0, 19, 0)),
        (" 0.14.4+cu121 ", (0, 14, 4)),
        ("0.16.0rc1", (0, 16, 0)),
        ("newest", None),
        ("", None),
    ],
)
def test_reading(text: str, version: tuple[int, int, int] | None) -> None:
    if version is None:
        with pytest.raises(ValueError, match="write one like"):
            Version.parse(text)
    else:
        assert Version.parse(text) == version


def test_order_is_numeric() -> None:
    assert Version.parse("0.9.5") < Version.parse("0.10.0") < Version.parse("0.10.3")
    assert OLDEST < NEWEST
    assert str(Version(0, 19, 8)) == "0.19.8"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """The release is looked up once per process."""
    installed_or_newest.cache_clear()
    yield
    installed_or_newest.cache_clear()


def test_the_installed_release_is_found_by_its_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.14.4+git")
    assert installed_or_newest() == Version(0, 14, 4)
    assert "deepspeed" not in sys.modules


def test_without_one_it_is_the_newest_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert installed_or_newest() == NEWEST
    installed_or_newest.cache_clear()
    monkeypatch.setattr(metadata, "version", lambda name: "unknown")
    assert installed_or_newest() == NEWEST
