"""Run the missing measurements and write docs/internals/gpu.md.

PYTHONPATH=tests python -m gpu
"""

import sys
from pathlib import Path

import torch

from gpu.page import page
from gpu.records import commit_of, measure, read

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "runs" / "gpu"
PAGE = ROOT / "docs" / "internals" / "gpu.md"


def main() -> int:
    if not torch.cuda.is_available():
        print("make gpu requires a CUDA device; torch finds none", file=sys.stderr)
        return 2
    from gpu.copies import copies
    from gpu.dry_run import dry_run
    from gpu.setting import on_gpu
    from gpu.speed import speed
    from gpu.training import training

    setting, commit = on_gpu(), commit_of(ROOT)
    for part, seconds in {training: 840, dry_run: 360, copies: 180, speed: 840}.items():
        ran = measure(part, setting, seconds, RECORDS, commit)
        print(part.__name__, "measured" if ran else "was measured already", flush=True)
        PAGE.write_text(page(read(RECORDS)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
