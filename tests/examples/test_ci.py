"""The action and the CI files in examples/ci: their commands run on the example's configs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ci"
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOW: dict[str, Any] = yaml.safe_load(
    (EXAMPLE / ".github" / "workflows" / "dsconfig.yml").read_text()
)
GITLAB: dict[str, Any] = yaml.safe_load((EXAMPLE / ".gitlab-ci.yml").read_text())
SELF = re.compile(r"OWNER/dsconfig@")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the example in a repository; HEAD^1 is its present state."""
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "project"))
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "base")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "change")
    return folder


def git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    subprocess.run(["git", *author, *arguments], cwd=folder, check=True)


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a runner does, with dsconfig first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, **variables, "PATH": path, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )


def run_action(folder: Path, *only: str) -> "dict[str, subprocess.CompletedProcess[str]]":
    """Run the steps of the action, or only these, with the inputs of the example."""
    (given,) = (
        step["with"]
        for step in WORKFLOW["jobs"]["check"]["steps"]
        if SELF.match(step.get("uses", ""))
    )
    assert set(given) <= set(ACTION["inputs"])
    inputs = {name: given.get(name, known["default"]) for name, known in ACTION["inputs"].items()}
    done: dict[str, subprocess.CompletedProcess[str]] = {}
    for step in ACTION["runs"]["steps"]:
        if "run" not in step or step["name"] == "Install" or (only and step["name"] not in only):
            continue
        named = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], value)
            for name, value in step["env"].items()
        }
        summary = str(folder / "summary.md")
        done[step["name"]] = shell(step["run"], folder, GITHUB_STEP_SUMMARY=summary, **named)
    return done


def test_action_passes_for_the_example(project: Path) -> None:
    done = run_action(project)
    assert [step.returncode for step in done.values()] == [0, 0, 0, 0]
    assert json.loads((project / "dsconfig.sarif").read_text())["version"] == "2.1.0"
    summary = (project / "summary.md").read_text()
    assert summary.startswith("### `configs/ds_config.json`\n\n```\n") and summary.count("```") == 2
    assert "GiB" in summary and "Required per GPU" in summary
    assert (project / "dsconfig.md").read_text() == ""


def test_action_annotates_mistakes_and_fails(project: Path) -> None:
    config = project / "configs" / "ds_config.json"
    config.write_text(config.read_text().replace("gradient_clipping", "gradient_cliping"))
    done = run_action(project, "Check")
    assert done["Check"].returncode == 1
    assert done["Check"].stdout.startswith("::error file=configs/ds_config.json,line=4,")


def test_action_fails_if_the_job_does_not_fit(project: Path) -> None:
    settings = project / "pyproject.toml"
    settings.write_text(settings.read_text().replace("8 x a100-80gb", "2 x rtx-3090"))
    done = run_action(project, "Memory")
    assert done["Memory"].returncode == 1
    assert "Does not fit" in (project / "summary.md").read_text()


def test_action_compares_with_the_base(project: Path) -> None:
    config = project / "configs" / "ds_config.json"
    config.write_text(config.read_text().replace('steps": 4', 'steps": 8'))
    done = run_action(project)
    assert [step.returncode for step in done.values()] == [0, 0, 0, 0]
    comment = (project / "dsconfig.md").read_text()
    assert "| Global batch | 32 samples | 64 samples |" in comment
    assert "| Required per GPU | 53.4 GiB | 53.4 GiB | unchanged |" in comment
    assert (project / "summary.md").read_text().endswith(comment)


def test_action_reports_a_config_that_cannot_be_compared(project: Path) -> None:
    (project / "configs" / "ds_config.json").write_text("[]")
    assert run_action(project, "Compare")["Compare"].returncode == 0
    comment = (project / "dsconfig.md").read_text()
    assert comment == "### `configs/ds_config.json` cannot be compared\n\n"


def test_gitlab_job_compares_with_the_base(project: Path) -> None:
    config = project / "configs" / "ds_config.json"
    config.write_text(config.read_text().replace('steps": 4', 'steps": 8'))
    skipped = ("pip install", "curl")
    lines = [line for line in GITLAB["compare"]["script"] if not line.startswith(skipped)]
    done = shell("\n".join(lines), project, CI_MERGE_REQUEST_DIFF_BASE_SHA="HEAD^1")
    assert done.returncode == 0, done.stderr
    assert "32 samples | 64 samples" in (project / "dsconfig.md").read_text()


def test_gitlab_job_passes_and_writes_its_report(project: Path) -> None:
    job = GITLAB["dsconfig"]
    commands = [line for line in job["script"] if not line.startswith("pip install")]
    done = shell("\n".join(commands), project)
    assert done.returncode == 0, done.stderr
    assert json.loads((project / job["artifacts"]["reports"]["codequality"]).read_text()) == []
