"""Names that no file can have, and values of flags that no program accepts."""

import os
from pathlib import Path
from typing import Any

import pytest

import dsconfig
import forked_python
from command_line import run
from sweeps import sweep

LONG = "a" * 5000
NULL = "a\0b"
NESTED = "a/" * 3000 + "b"
CONFIG = '{"train_batch_size": 8, "zero_optimization": {"stage": 2}}'
NAMES = {"long": LONG, "nested": NESTED}
COMMANDS = [
    ("validate", "NAME"),
    ("validate", "CLEAN", "--baseline", "NAME"),
    ("validate", "CLEAN", "--training-args", "NAME"),
    ("validate", "CLEAN", "--accelerate-config", "NAME"),
    ("validate", "CLEAN", "--model", "NAME"),
    ("validate", "CLEAN", "--model", "NAME.json"),
    ("resolve", "NAME"),
    ("resolve", "CLEAN", "--gpus", "2", "-o", "NAME"),
    ("plan", "NAME"),
    ("plan", "CLEAN", "--gpus", "2", "-o", "NAME"),
    ("estimate", "NAME"),
    ("estimate", "CLEAN", "--model", "gpt2", "--gpus", "2", "--html", "NAME"),
    ("diff", "CLEAN", "NAME"),
    ("convert", "NAME", "--to", "json"),
    ("convert", "CLEAN", "--to", "json", "-o", "NAME"),
    ("explain", "NAME"),
    ("schema", "-o", "NAME"),
    ("init", "-o", "NAME"),
    ("run", "CLEAN", "--gpus", "2", "--", "NAME.py"),
    ("run", "CLEAN", "--gpus", "2", "--emit", "slurm", "--", "NAME"),
    ("run", "NAME", "--gpus", "2", "--", "SCRIPT"),
    ("run", "CLEAN", "--hostfile", "NAME", "--", "SCRIPT"),
    ("checkpoint", "verify", "NAME"),
    ("doctor", "--log", "NAME"),
    ("models", "NAME"),
    ("devices", "NAME"),
]


@sweep(1, command={" ".join(words): words for words in COMMANDS}, name=NAMES)
def test_impossible_name_is_an_error(command: tuple[str, ...], name: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(CONFIG)
    (tmp_path / "train.py").write_text("")
    places = {"CLEAN": "ds.json", "SCRIPT": "train.py"}
    words = [places.get(word, word.replace("NAME", name)) for word in command]
    if command[0] == "checkpoint":  # imports torch
        words = ["-m", "dsconfig", *words]
        done = forked_python.run(*words, environment=os.environ, folder=tmp_path)
    else:
        done = run(*words, cwd=tmp_path)
    assert done.returncode in (1, 2), done.stderr[-2000:]
    assert "Traceback" not in done.stderr and len(done.stderr) < 20_000


@pytest.mark.parametrize("name", [LONG, NULL, NESTED, "", " ", "\udcff"])
def test_impossible_name_in_the_library(name: Any) -> None:
    assert dsconfig.read(name).diagnostics != () or not name.strip()
    for argument in ("model", "training_args", "accelerate_config", "device", "nvme"):
        try:
            facts = dsconfig.gather(gpus=1, **{argument: name})
        except ValueError as error:
            assert argument in str(error)
        else:
            assert argument == "nvme" and facts.host is not None
