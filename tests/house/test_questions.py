"""The page of questions: every command is run, and prints the answer that stands beside it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "questions.md").read_text("utf-8")
ROWS = re.findall(r"^\| (.+?) \| `dsconfig (.+?)` \| (.+?) \|$", PAGE, re.MULTILINE)
FILES = re.findall(r"^`(\w+\.json)`[^\n]*:\n\n```json\n(.+?)\n```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("questions")
    for name, text in FILES:
        (made / name).write_text(text + "\n")
    return made


def test_there_are_twenty() -> None:
    assert len(ROWS) == 20 and len(FILES) == 6


@pytest.mark.parametrize(("question", "command", "answer"), ROWS, ids=[row[0] for row in ROWS])
def test_the_command_answers(question: str, command: str, answer: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dsconfig", *command.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    printed = " ".join((done.stdout + done.stderr).split())
    assert " ".join(answer.split()) in printed, printed
