"""``-o`` replaces an existing file only with ``--force``, in every command."""

from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from command_line import run
from dsconfig.commands.app import COMMANDS, PACKAGE

CLEAN = """{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}"""

SMALL = ("--device-memory", "3GiB")


def _outputs() -> list[str]:
    """Return the commands that write a file to -o."""
    return [
        name
        for name in COMMANDS
        if "output" in signature(getattr(import_module(f"{PACKAGE}.{name}"), name)).parameters
    ]


@pytest.mark.parametrize("name", sorted({*_outputs()} - {"checkpoint"}))
def test_existing_file_is_replaced_only_with_force(tmp_path: Path, name: str) -> None:
    (tmp_path / "ds.json").write_text(CLEAN)
    world = ("--model", "gpt2", "--gpus", 1, "--device", "h100", "--seq-len", 64)
    arguments: dict[str, tuple[object, ...]] = {
        "resolve": ("ds.json", "--gpus", 2, "--runtime", "dsengine"),
        "estimate": ("ds.json", *world, "--set", "zero_optimization.stage=0", *SMALL),
        "plan": ("ds.json", "--gpus", 2),
        "tune": world,
        "convert": ("ds.json", "--to", "json"),
        "diff": ("ds.json", "--from-version", "0.14.4", "--pin"),
    }
    output = tmp_path / "out.json"
    output.write_text("")
    command = (name, *arguments.get(name, ()), "-o", output)
    first = run(*command, cwd=tmp_path)
    assert output.read_text(), first.stderr
    output.write_text("mine")
    again = run(*command, cwd=tmp_path)
    assert again.returncode == 2 and output.read_text() == "mine"
    assert f"-o {output}: the file exists; specify another file, or --force" in again.stderr
    run(*command, "--force", cwd=tmp_path)
    assert output.read_text() != "mine"
