"""The pre-commit hooks match config files and run existing commands."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsconfig.commands.app import COMMANDS
from dsconfig.project import search
from validate.test_command import Run, put, run

__all__ = ["run"]

yaml: Any = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
TAKEN = (
    "ds_config.json",
    "conf/ds_config_zero3.json",
    "my_ds_config.json",
    "zero3.json",
    "ds_z2_offload_config.json",
    "deepspeed_config.json",
    "x/deepspeed-config.yaml",
    "configs/train.json",
)
SKIPPED = {
    "package.json": '{"name": "x"}',
    "config.json": '{"model_type": "llama", "hidden_size": 64}',
    "broken.json": "{",
    "tsconfig.json": '{\n  // comment\n  "compilerOptions": {},\n}',
    "mkdocs.yml": "nav: []\n",
}


@pytest.mark.parametrize("hook", HOOKS, ids=[hook["id"] for hook in HOOKS])
def test_hook_runs_a_command_on_configs(hook: dict[str, Any]) -> None:
    program, command, *_ = hook["entry"].split()
    assert program == "dsconfig" and command in COMMANDS
    pattern = re.compile(hook["files"])
    assert all(pattern.search(name) for name in TAKEN)
    assert all(pattern.search(name) for name in SKIPPED)
    assert not pattern.search("ds_config.py")


def test_folder_search_finds_the_files_of_the_hook(tmp_path: Path) -> None:
    for name in TAKEN:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        config = '{"train_batch_size": 8}'
        path.write_text(config if path.suffix == ".json" else f"deepspeed: {config}\n")
    found = {
        Path(each).relative_to(tmp_path).as_posix() for each in search.configs_in(str(tmp_path))
    }
    assert found == set(TAKEN)


@pytest.mark.parametrize("hook", HOOKS, ids=[hook["id"] for hook in HOOKS])
def test_hook_checks_configs_and_skips_other_files(hook: dict[str, Any], run: Run) -> None:
    _, _, *flags = hook["entry"].split()
    for name, text in SKIPPED.items():
        put(name, text)
    assert run(*flags, *SKIPPED).code == 0
    put("configs/train.json", '{"train_batch_size": 8, "gradient_cliping": 1}')
    result = run(*flags, "configs/train.json", *SKIPPED)
    assert result.code == 1 and "DSC021" in result.out and "1 file," in result.err


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with a config, which has a mistake that a safe fix corrects."""
    (tmp_path / "ds_config.json").write_text(
        '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": true}}\n'
    )
    (tmp_path / "package.json").write_text('{"name": "x"}\n')
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.live
def test_pre_commit_installs_and_runs_the_hooks(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("pre_commit")
    home = str(tmp_path_factory.mktemp("pre_commit"))

    def hook(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pre_commit", "try-repo", str(ROOT), name, "--all-files"],
            cwd=repository,
            env={**os.environ, "PRE_COMMIT_HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )

    config = repository / "ds_config.json"
    fixed = hook("dsconfig-fix")
    assert fixed.returncode == 1 and "files were modified by this hook" in fixed.stdout
    assert "offload_optimizer" in config.read_text()
    passed = hook("dsconfig-validate")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    config.write_text(config.read_text().replace("train_batch_size", "train_batchsize"))
    failed = hook("dsconfig-validate")
    assert failed.returncode == 1 and "ds_config.json" in failed.stdout
    assert "package.json" not in failed.stdout
