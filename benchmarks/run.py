"""Run every benchmark that needs no accelerator: ``make bench``.

Results are ratios of medians over interleaved rounds; absolute times depend on the machine and its
load.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("validate", "resolve", "estimate", "start")


def main() -> int:
    """Run all benchmarks; return 1 if one failed."""
    failed = False
    for name in NAMES:
        print(f"\n== {name}", flush=True)
        failed |= subprocess.run([sys.executable, HERE / f"{name}.py"]).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
