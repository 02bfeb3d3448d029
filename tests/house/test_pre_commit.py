"""The pre-commit hooks match config files and run existing commands."""

import re
from pathlib import Path
from typing import Any

import pytest

from dsconfig.commands.app import COMMANDS
from dsconfig.project import search
from validate.test_command import Run, put, run

__all__ = ["run"]

yaml: Any = pytest.importorskip("yaml")
HOOKS = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text("utf-8"))
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
