"""``--lora-rank`` and the flags it requires or excludes."""

import pytest
from typer.testing import CliRunner

from dsconfig.commands.app import app

FACTS = ["--model", "gpt2", "--gpus", "1", "--seq-len", "64"]


@pytest.mark.parametrize("command", ["estimate", "tune"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--lora-targets", "c_attn"], "requires --lora-rank"),
        (["--lora-dropout", "0.1"], "requires --lora-rank"),
        (["--lora-rank", "8", "--lora-targets", ","], "no name: not a linear layer"),
        (["--lora-rank", "8", "--trainable", "2M"], "already define what is trained"),
    ],
)
def test_inconsistent_lora_flags_are_rejected(command: str, flags: list[str], words: str) -> None:
    done = CliRunner().invoke(app, [command, *FACTS, *flags])
    assert done.exception is not None
    assert words in f"{done.exception}{done.output}"
