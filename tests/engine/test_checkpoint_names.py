"""DeepSpeed's checkpoint files can be read by scripts while dsengine replaces deepspeed."""

import os
from pathlib import Path

import pytest

import forked_python

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "tests" / "oracle" / "deepspeed_checkpoints").iterdir())


def replaced(code: str, *arguments: str) -> str:
    """Run ``code`` with dsengine in place of deepspeed; return what it prints."""
    command = ["-c", f"import dsengine.as_deepspeed\n{code}", *arguments]
    done = forked_python.run(*command, environment=os.environ, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_load_reads_deepspeed_files() -> None:
    code = """
import sys, torch
from pathlib import Path
for file in sorted(Path(sys.argv[1]).rglob("*.pt")):
    content = torch.load(file, weights_only=False, map_location="cpu")
    scaler = content.get("optimizer_state_dict", {}).get("loss_scaler")
    print("optimizer" if scaler else "model", scaler and (scaler.loss_scale, scaler.dynamic))
"""
    lines = replaced(code, str(RECORDED[0].parent)).splitlines()
    assert {line for line in lines if line.startswith("optimizer")} == {"optimizer (1.0, False)"}
    assert sum(line.startswith("optimizer") for line in lines) == 12 < len(lines)


def test_scaler_has_its_constructor() -> None:
    from dsengine.runtime.fp16.loss_scaler import DynamicLossScaler

    scaler = DynamicLossScaler(2**16, 1000, 1, delayed_shift=2, consecutive_hysteresis=False)
    assert scaler.loss_scale == 65536 and scaler.dynamic and scaler.cur_hysteresis == 2


def test_sequence_parallel_size_1_registers_nothing() -> None:
    from dsengine.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    register = UlyssesSPAttentionHF.register_with_transformers
    assert register("model", "sdpa", sequence_parallel_size=1, micro_batch_size=1) is None
    with pytest.raises(ValueError, match="sequence_parallel_size 2 does not divide 1 ranks"):
        register("model", "sdpa", sequence_parallel_size=2, micro_batch_size=1)
