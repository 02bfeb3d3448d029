"""Every command on the page of questions prints the answer beside it."""

import re
from pathlib import Path

import pytest

from command_line import run

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "questions.md").read_text("utf-8")
ROWS = re.findall(r"^\| (.+?) \| `dsconfig (.+?)` \| (.+?) \|$", PAGE, re.MULTILINE)
FILES = re.findall(r"^`(\w+\.json)`[^\n]*:\n\n```json\n(.+?)\n```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files that the page defines."""
    folder = tmp_path_factory.mktemp("questions")
    for name, text in FILES:
        (folder / name).write_text(text + "\n")
    return folder


def test_page_has_twenty_questions_and_six_files() -> None:
    assert len(ROWS) == 20 and len(FILES) == 6


@pytest.mark.parametrize(("question", "command", "answer"), ROWS, ids=[row[0] for row in ROWS])
def test_command_prints_the_answer(question: str, command: str, answer: str, folder: Path) -> None:
    done = run(*command.split(), cwd=folder, columns=100)
    assert done.returncode in (0, 1), done.stderr
    printed = " ".join((done.stdout + done.stderr).split())
    assert " ".join(answer.split()) in printed, printed
