"""The main workflow on a real config, as run by ``make run``."""

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent
RUNS = EXAMPLES.parent / "runs"
DSCONFIG = (sys.executable, "-m", "dsconfig")
STEPS = 25
"""Optimizer steps before and after the checkpoint."""


def show(*command: object, expect: int = 0) -> None:
    """Print and run a command; exit if its exit code is unexpected."""
    words = [str(word) for word in command]
    shown = [Path(word).name if word == sys.executable else word for word in words]
    print(
        f"\n\033[1m$ {' '.join(shown)}\033[0m" if sys.stdout.isatty() else f"\n$ {' '.join(shown)}"
    )
    sys.stdout.flush()
    result = subprocess.run(words, cwd=EXAMPLES.parent)
    if result.returncode != expect:
        sys.exit(f"expected exit code {expect}, got {result.returncode}")


def broken_copy() -> Path:
    """Return a copy of the published config with three common mistakes."""
    text = (EXAMPLES / "baichuan2.json").read_text()
    text = text.replace('"overlap_comm"', '"overlap_com"')
    text = text.replace('"gradient_clipping": 1.0', '"gradient_clipping": "1.0"')
    text = text.replace('"bf16": {', '"fp16": {"enabled": true},\n    "bf16": {')
    text = text.replace('"enabled": "auto"', '"enabled": true')
    path = RUNS / "baichuan2_broken.json"
    path.write_text(text)
    return path.relative_to(EXAMPLES.parent)


def train(*options: object) -> None:
    show(
        *DSCONFIG,
        "run",
        "examples/gpt_zero3.json",
        *("--gpus", 2, "--device", "cpu", "--model", "examples/gpt.json"),
        *("--micro-batch", 8, "--global-batch", 32, "--seq-len", 128),
        "--",
        "examples/train_gpt.py",
        *("--steps", STEPS, "--folder", "runs/gpt"),
        *options,
    )


def main() -> None:
    shutil.rmtree(RUNS, ignore_errors=True)
    RUNS.mkdir()
    facts = ("--gpus", 2, "--device", "cpu", "--model", "examples/gpt.json")
    batch = ("--micro-batch", 8, "--global-batch", 32)
    show(*DSCONFIG, "validate", "examples/baichuan2.json")
    show(*DSCONFIG, "validate", broken_copy(), expect=1)
    show(*DSCONFIG, "resolve", "examples/baichuan2.json", *facts, *batch)
    show(*DSCONFIG, "estimate", "--params", "13e9", "--gpus", 8)
    show(sys.executable, "examples/library.py")
    train()
    train("--resume", "--export", "runs/gpt/weights")
    weights = RUNS / "gpt" / "weights" / "model.safetensors"
    print(
        f"\nexported {weights.stat().st_size / 2**20:.1f} MiB to {weights.relative_to(RUNS.parent)}"
    )


if __name__ == "__main__":
    main()
