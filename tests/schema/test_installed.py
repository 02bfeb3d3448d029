"""Detection of the installed DeepSpeed from its metadata, without import."""

import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from dsconfig.schema import NEWEST, Version, installed_or_newest


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """The release is looked up once per process."""
    installed_or_newest.cache_clear()
    yield
    installed_or_newest.cache_clear()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty path that Python would import from."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(place: Path, folder: str, version: str) -> None:
    home = place / folder
    home.mkdir(parents=True)
    name = "PKG-INFO" if folder.endswith("egg-info") else "METADATA"
    (home / name).write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("folder", "version"),
    [
        ("deepspeed-0.14.4.dist-info", "0.14.4"),
        ("deepspeed-0.16.2+cu121.dist-info", "0.16.2+cu121"),
        ("DeepSpeed-0.9.5.dist-info", "0.9.5"),
        ("deepspeed.egg-info", "0.12.6"),
        ("deepspeed-0.10.3-py3.11.egg-info", "0.10.3"),
    ],
)
def test_installed_version_by_installer_names(place: Path, folder: str, version: str) -> None:
    install(place, folder, version)
    assert installed_or_newest() == Version.parse(version)
    assert metadata.version("deepspeed") == version
    assert "deepspeed" not in sys.modules


def test_first_installation_on_path_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(place / "one", "deepspeed-0.14.4.dist-info", "0.14.4")
    install(place / "two", "deepspeed-0.15.4.dist-info", "0.15.4")
    monkeypatch.setattr(sys, "path", [str(place / "none"), str(place / "one"), str(place / "two")])
    assert installed_or_newest() == Version(0, 14, 4)
    assert metadata.version("deepspeed") == "0.14.4"


def test_archive_on_path_is_opened(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(place / "packages.zip", "w") as archive:
        archive.writestr(
            "deepspeed-0.13.5.dist-info/METADATA", "Name: deepspeed\nVersion: 0.13.5\n"
        )
    monkeypatch.setattr(sys, "path", [str(place / "packages.zip")])
    assert installed_or_newest() == Version(0, 13, 5)


def test_egg_is_opened(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    egg = place / "deepspeed-0.11.2-py3.11.egg"
    (egg / "EGG-INFO").mkdir(parents=True)
    (egg / "EGG-INFO" / "PKG-INFO").write_text("Name: deepspeed\nVersion: 0.11.2\n")
    monkeypatch.setattr(sys, "path", [str(egg)])
    assert installed_or_newest() == Version(0, 11, 2)


@pytest.mark.parametrize("folder", ["deepspeed_mii-0.1.0.dist-info", "deepspeed"])
def test_other_packages_are_not_deepspeed(place: Path, folder: str) -> None:
    install(place, folder, "0.1.0")
    assert installed_or_newest() == NEWEST


def test_no_installation_returns_newest_known(place: Path) -> None:
    assert installed_or_newest() == NEWEST


def test_invalid_version_counts_as_missing(place: Path) -> None:
    install(place, "deepspeed-unknown.dist-info", "unknown")
    assert installed_or_newest() == NEWEST


def test_usual_installation_needs_no_metadata(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(name: str) -> str:
        raise AssertionError(f"the metadata of {name} was opened")

    monkeypatch.setattr(metadata, "version", opened)
    install(place, "deepspeed-0.14.4.dist-info", "0.14.4")
    assert installed_or_newest() == Version(0, 14, 4)
