"""The wheel contains exactly the two packages and works outside the checkout."""

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from suite.distribution import build


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build(folder, "--wheel")
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked wheel, as installed on sys.path."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def outside(site: Path, *code: str) -> subprocess.CompletedProcess[str]:
    """Run Python with only the wheel and its dependencies importable."""
    preamble = (
        f"import sys; sys.path.insert(0, {str(site)!r}); "
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in type(f).__module__ "
        "and 'editable' not in getattr(f, '__module__', '')]; "
    )
    return subprocess.run(
        [sys.executable, "-c", preamble + "; ".join(code)],
        capture_output=True,
        text=True,
        cwd=site.parent,
    )


def test_wheel_has_exactly_two_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        names = set(archive.namelist())
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dsconfig", "dsengine"}
    assert {"dsconfig/py.typed", "dsengine/py.typed"} <= names
    assert "dsengine/startup/path/sitecustomize.py" in names
    assert "dsconfig/report/rules/DSC101.md" in names, "rule links must resolve when installed"


def test_wheel_metadata_has_links(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    assert [line for line in lines if line.startswith("Project-URL: ")]


def test_wheel_has_commands_and_an_executable_launcher(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        mode = archive.getinfo("dsengine/startup/bin/deepspeed").external_attr >> 16
        [points] = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        lines = archive.read(points).decode().splitlines()
    assert mode & 0o111 == 0o111
    assert "dsengine = dsengine.__main__:main" in lines


def test_command_dsengine_from_wheel(site: Path) -> None:
    probe = "import deepspeed; print(deepspeed.__file__)"
    result = outside(
        site,
        "import os",
        f"os.environ['PYTHONPATH'] = {str(site)!r}",
        f"sys.argv = ['dsengine', sys.executable, '-c', {probe!r}]",
        "from dsengine.__main__ import main",
        "main()",
    )
    assert result.stdout == f"{site / 'dsengine' / '__init__.py'}\n", result.stderr


def test_validate_from_wheel(site: Path, tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimisation": {"stage": 3}}')
    result = outside(
        site,
        f"sys.argv = ['dsconfig', 'validate', {str(config)!r}]",
        "from dsconfig.__main__ import main",
        "main()",
    )
    assert result.returncode == 1, result.stderr
    assert "zero_optimization" in result.stdout


def test_estimate_from_wheel(site: Path) -> None:
    result = outside(
        site,
        "sys.argv = ['dsconfig', 'estimate', '--params', '13e9', '--gpus', '8',"
        " '--output-format', 'json']",
        "from dsconfig.__main__ import main",
        "main()",
    )
    assert result.returncode == 0, result.stderr
    rules = {option["bucket_rule_bytes"] for option in json.loads(result.stdout)["options"]}
    assert 9_000_000_000 in rules


def test_library_from_wheel(site: Path) -> None:
    result = outside(
        site,
        "import dsconfig",
        f"assert dsconfig.__file__.startswith({str(site)!r}), dsconfig.__file__",
        "facts = dsconfig.Facts(world_size=2)",
        "config = {'train_micro_batch_size_per_gpu': 4, 'zero_optimization': {'stage': 3}}",
        "plan = dsconfig.plan(dsconfig.resolve(config, facts), facts)",
        "print(plan.batch.global_batch)",
    )
    assert result.stdout.strip() == "8", result.stderr


def test_source_archive_has_the_test_files(tmp_path: Path) -> None:
    build(tmp_path, "--sdist")
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ["Makefile", "constraints.txt", "cli.py", "docs/README.md"]
    needed += ["docs/internals/decisions"]
    needed += ["tests/conftest.py", "tests/replay.py", "tests/oracle", "schemas", "examples"]
    assert set(needed) <= names
    assert not [name for name in names if "__pycache__" in name]
