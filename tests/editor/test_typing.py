"""Random edits: the server stays alive, and its findings are those of ``dsconfig validate``."""

import random
from pathlib import Path

import pytest

from dsconfig.editor import open_file
from dsconfig.project.targets import Target
from dsconfig.project.validator import Validator
from editor.client import Editor, run

CONFIG = """{
  // A comment.
  "train_batch_size": "auto",
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
  "fp16": {"enabled": false},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "overlap_comm": true,
    "reduce_bucket_size": 5e8
  },
  "gradient_cliping": 1.0
}
"""
CHARACTERS = "{}[]\":,/# \n\r\tabcE0159.-_\\'\u2028\x0b\N{MAHJONG TILE RED DRAGON}é"


def edited(text: str, seed: int) -> str:
    """Return the text with one character inserted, deleted or replaced."""
    pick = random.Random(seed)
    at, new = pick.randrange(len(text) + 1), pick.choice(CHARACTERS)
    match pick.randrange(3):
        case 0:
            return text[:at] + new + text[at:]
        case 1:
            return text[:at] + text[at + 1 :]
        case _:
            return text[:at] + new + text[at + 1 :]


def test_findings_are_those_of_validate(tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    text = CONFIG
    for seed in range(300):
        text = edited(text if seed % 20 else CONFIG, seed)
        file.write_text(text, encoding="utf-8", newline="")
        expected = Validator().check(Target(str(file), str(file)))
        assert open_file.open_file(text, str(file)).checked == expected, text


def _type(folder: Path, edits: range) -> None:
    async def work(editor: Editor) -> None:
        await editor.open("ds_config.json", CONFIG)
        text = CONFIG
        for seed in edits:
            text = edited(text if seed % 20 else CONFIG, seed)
            editor.type("ds_config.json", text)
            if seed % 10 == 9:
                line = text[: len(text) // 2].count("\n")
                await editor.hover("ds_config.json", line, 5)
                await editor.complete("ds_config.json", line, 5)
                await editor.actions("ds_config.json", line, 5)
                found = await editor.findings("ds_config.json")
                checked = open_file.open_file(text, str(folder / "ds_config.json")).checked
                codes = [each.code for each in checked.report.diagnostics]
                assert [each.code for each in found] == codes, text

    run(folder, work)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1500, 3000, 4500))]
)
def test_server_survives_1500_random_edits(tmp_path: Path, first: int) -> None:
    _type(tmp_path, range(first, first + 1500))
