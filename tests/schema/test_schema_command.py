"""``dsconfig schema``: one release to stdout or a file, or all published ones."""

import json
from pathlib import Path

from dsconfig.schema.version import PUBLISHED

from .conftest import Run


def test_schema_of_release(run: Run) -> None:
    code, out, _ = run("schema", "--deepspeed-version", "0.14.4")
    schema = json.loads(out)
    assert code == 0
    assert schema["$id"].endswith(":ds_config-0.14.4.schema.json")
    assert "amp" in schema["properties"]


def test_schema_to_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    code, out, _ = run("schema", "--deepspeed-version", "0.19.8", "-o", path)
    assert (code, out) == (0, "")
    assert "amp" not in json.loads(path.read_text())["properties"]


def test_all_published_schemas(run: Run, tmp_path: Path) -> None:
    assert run("schema", "--all", tmp_path / "new")[0] == 0
    assert len(list((tmp_path / "new").iterdir())) == len(PUBLISHED) + 1


def test_unknown_release_is_usage_error(run: Run) -> None:
    code, _, err = run("schema", "--deepspeed-version", "newest")
    assert code == 2
    assert "write one like 0.19.8" in err
