"""``--lora-rank`` with what belongs to it, and what contradicts it."""

import pytest
from typer.testing import CliRunner

from dsconfig.commands.app import app

ASKED = ["--model", "gpt2", "--gpus", "1", "--seq-len", "64"]


@pytest.mark.parametrize("command", ["estimate", "tune"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--lora-targets", "c_attn"], "require --lora-rank"),
        (["--lora-dropout", "0.1"], "require --lora-rank"),
        (["--lora-rank", "8", "--lora-targets", ","], "no name: no linear map"),
        (["--lora-rank", "8", "--trainable", "2M"], "already define what is trained"),
    ],
)
def test_no_flag_is_passed_over(command: str, flags: list[str], words: str) -> None:
    done = CliRunner().invoke(app, [command, *ASKED, *flags])
    assert done.exception is not None
    assert words in f"{done.exception}{done.output}"
