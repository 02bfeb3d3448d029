"""Scripts written for DeepSpeed, in processes of their own: on dsengine, and on the real one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ports import reserved_port

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
STAND_IN = {"dsengine": "dsengine.as_deepspeed", "deepspeed": "frameworks.real"}


def environment(ranks: int) -> dict[str, str]:
    """That of a process which a launcher has started, or of the launcher of several."""
    paths = [str(ROOT), str(ROOT / "engine"), str(ROOT / "tests")]
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(reserved_port()),
    }
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
        **(alone if ranks == 1 else {}),
    }


def run(package: str, script: str, *arguments: str, ranks: int = 1) -> str:
    """Run a script with a package as its ``deepspeed``; return what it prints.

    Raises RuntimeError with the end of its output when it fails.
    """
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    program = ["-m", STAND_IN[package], str(SCRIPTS / f"{script}.py"), *arguments]
    command = [sys.executable, *(launch if ranks > 1 else []), *program]
    done = subprocess.run(command, env=environment(ranks), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout + done.stderr


def told(package: str, script: str, folder: Path, *arguments: str, ranks: int = 1) -> Any:
    """Run a script that writes what it has to tell into the file it is given first."""
    target = folder / f"{package}.json"
    run(package, script, str(target), *arguments, ranks=ranks)
    return json.loads(target.read_text())


def tiny_model(folder: Path) -> Path:
    """A language model in a folder, as ``from_pretrained`` reads it; the same one each time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=97,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    target = folder / "model"
    LlamaForCausalLM(config).save_pretrained(target)
    return target
