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


@pytest.mark.parametrize("command", ["estimate", "tune", "init"])
def test_quantized_base_weights_need_adapters(command: str) -> None:
    flags = ["--model", "gpt2", "--gpus", "1", "--device", "rtx-4090", "--seq-len", "64"]
    alone = CliRunner().invoke(app, [command, *flags, "--base-weights", "4bit"])
    assert "specify --lora-rank or --trainable" in f"{alone.exception}{alone.output}"
    done = CliRunner().invoke(app, [command, *flags, "--base-weights", "4bit", "--lora-rank", "8"])
    assert done.exit_code == 0, done.output


def test_estimate_states_what_is_quantized() -> None:
    flags = ["--base-weights", "4bit", "--lora-rank", "8"]
    shown = " ".join(CliRunner().invoke(app, ["estimate", *FACTS, *flags]).stdout.split())
    assert "4-bit base weights, LoRA rank 8, 1.18e6 trainable, AdamW" in shown
    assert "embeddings, head and norms stay in 16 bits" in shown
    assert "Stage 3 requires bnb_4bit_quant_storage" in shown


def test_init_writes_how_the_base_weights_are_loaded() -> None:
    world = ["--model", "llama-2-7b", "--gpus", "2", "--device", "rtx-4090"]
    flags = ["--lora-rank", "16", "--base-weights", "4bit", "--runtime", "transformers"]
    done = CliRunner().invoke(app, ["init", *world, *flags])
    assert "with LoRA (rank 16), 4-bit base weights" in done.stdout
    assert "LoraConfig(r=16" in done.stdout and "load_in_4bit=True" in done.stdout


def test_init_writes_which_modules_are_adapted() -> None:
    world = ["--model", "llama-2-7b", "--gpus", "2", "--device", "rtx-4090", "--lora-rank", "4"]
    flags = ["--lora-targets", "q_proj, v_proj", "--runtime", "deepspeed"]
    done = CliRunner().invoke(app, ["init", *world, *flags])
    assert 'LoraConfig(r=4, target_modules=["q_proj", "v_proj"])' in done.stdout


def test_estimate_states_the_trainable_parameters() -> None:
    shown = CliRunner().invoke(app, ["estimate", *FACTS, "--trainable", "2M"]).stdout
    assert ", 2e6 trainable, AdamW" in shown and "LoRA" not in shown
    assert " trainable" not in CliRunner().invoke(app, ["estimate", *FACTS]).stdout
