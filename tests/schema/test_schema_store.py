"""Other validators accept our schemas and reports: ajv, check-jsonschema, VS Code's, SARIF's."""

import json
import os
import platform
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import build_site
import command_line
from dsconfig.project import search

ROOT = Path(__file__).parents[2]
STORE = ROOT / "editors" / "schemastore"
TOOLS = ROOT / "tests" / "node_tools"
SCHEMAS = sorted((ROOT / "schemas").glob("*.schema.json"))
NEWEST = ROOT / "schemas" / "ds_config.schema.json"
needs_node = pytest.mark.skipif(shutil.which("npm") is None, reason="no Node is installed")


@pytest.fixture(scope="module")
def modules() -> Path:
    """Return the folder of the installed Node packages."""
    return build_site.installed(TOOLS)


def node(script: str, *arguments: Path | str) -> Any:
    """Return the JSON that a script of this folder prints."""
    done = subprocess.run(
        ["node", TOOLS / script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.live
@needs_node
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda path: path.stem)
def test_ajv_compiles_schemas_in_strict_mode(modules: Path, schema: Path, tmp_path: Path) -> None:
    keywords = STORE / "vscode-keywords.json"
    samples = [tmp_path, tmp_path]
    if schema == NEWEST:
        samples = [STORE / "test", STORE / "negative_test"]
    checked = node("check_schema.mjs", modules, keywords, schema, *samples)
    assert checked == {"rejected": [], "accepted": []}


@pytest.mark.live
def test_check_jsonschema_accepts_schemas_and_samples() -> None:
    command = [sys.executable, "-m", "check_jsonschema"]
    subprocess.run([*command, "--check-metaschema", *SCHEMAS], check=True)
    against = [*command, "--schemafile", NEWEST]
    subprocess.run([*against, *(STORE / "test").glob("*.json")], check=True)
    for sample in (STORE / "negative_test").glob("*.json"):
        done = subprocess.run([*against, sample], capture_output=True, check=False)
        assert done.returncode == 1, sample


@pytest.mark.live
@needs_node
def test_json_service_of_vs_code_shows_descriptions(modules: Path) -> None:
    sample = STORE / "negative_test" / "misspelled-key.json"
    shown = node("hover.mjs", modules, NEWEST, sample, '"stage"')
    known = json.loads(NEWEST.read_text("utf-8"))["definitions"]
    described = next(
        block["properties"]["stage"]["description"]
        for block in known.values()
        if "overlap_comm" in block.get("properties", {})
    )
    assert described in str(shown["hover"]).replace("\\", "").replace("&nbsp;", " ")
    assert "overlap_comm" in shown["completed"]
    assert any("overlap_com" in problem for problem in shown["problems"])


@pytest.mark.live
@needs_node
@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="another package"
)
def test_sarif_validator_accepts_a_report(modules: Path, tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"overlap_com": 1}}')
    done = command_line.run("validate", "ds_config.json", "--output-format", "sarif", cwd=tmp_path)
    report, found = tmp_path / "out.sarif", tmp_path / "found.sarif"
    report.write_text(done.stdout, "utf-8")
    program = modules / "@microsoft" / "sarif-multitool-linux" / "Sarif.Multitool"
    program.chmod(0o755)
    subprocess.run(
        [program, "validate", report, "--output", found],
        env={"DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"},
        capture_output=True,
        check=True,
    )
    results = json.loads(found.read_text("utf-8-sig"))["runs"][0]["results"]
    # SARIF2005 wants an address of the project; it has none yet.
    assert [each["ruleId"] for each in results if each["ruleId"] != "SARIF2005"] == []


@pytest.mark.live
def test_pre_commit_runs_the_hooks(tmp_path: Path) -> None:
    manifest = ROOT / ".pre-commit-hooks.yaml"
    pre_commit = [sys.executable, "-m", "pre_commit"]
    subprocess.run([*pre_commit, "validate-manifest", manifest], check=True)
    # The published hooks, started from this environment instead of one of their own.
    hooks = yaml.safe_load(manifest.read_text("utf-8"))
    for hook in hooks:
        hook |= {"language": "system", "entry": f"{sys.executable} -m {hook['entry']}"}
    settings = {"repos": [{"repo": "local", "hooks": hooks}]}
    (tmp_path / ".pre-commit-config.yaml").write_text(yaml.safe_dump(settings))
    shutil.copy(STORE / "test" / "zero3-offload.json", tmp_path / "ds_config.json")
    (tmp_path / "package.json").write_text('{"name": "other"}')
    home = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home")}
    run = {"cwd": tmp_path, "env": home, "capture_output": True, "text": True}
    for command in (["git", "init", "-q"], ["git", "add", "."]):
        subprocess.run(command, **run, check=True)
    hook = [*pre_commit, "run", "dsconfig-validate", "--all-files"]
    assert subprocess.run(hook, **run, check=False).returncode == 0
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"stage": 4}}')
    failed = subprocess.run(hook, **run, check=False)
    assert failed.returncode == 1 and "DSC031" in failed.stdout


def test_catalogue_entry_matches_only_names_of_configs() -> None:
    entry = json.loads((STORE / "catalog-entry.json").read_text("utf-8"))
    usual = ["ds_config.json", "ds_config_zero3.json", "my_ds_config.json", "deepspeed_config.json"]
    for pattern in entry["fileMatch"]:
        assert search.is_candidate(Path(pattern.replace("*", "x")))
    for name in usual:
        assert any(fnmatch(name, pattern) for pattern in entry["fileMatch"]), name
    for name in ("config.json", "package.json", "zero.json"):
        assert not any(fnmatch(name, pattern) for pattern in entry["fileMatch"]), name


def test_keywords_outside_the_draft_are_declared() -> None:
    declared = json.loads((STORE / "vscode-keywords.json").read_text("utf-8"))
    options = json.loads((STORE / "schema-validation.json").read_text("utf-8"))["options"]
    assert options["deepspeed-config.json"]["unknownKeywords"] == declared
    assert all(f'"{keyword}"' in NEWEST.read_text("utf-8") for keyword in declared)
