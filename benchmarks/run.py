"""Every benchmark that needs no accelerator, one after the other: ``make bench``.

Figures are ratios of medians over interleaved rounds of the same run; absolute times depend on the
machine and on what else it does.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("validate", "resolve", "estimate", "start")


def main() -> int:
    """Run them all; exit 1 when one of them could not run."""
    failed = False
    for name in NAMES:
        print(f"\n== {name}", flush=True)
        failed |= subprocess.run([sys.executable, HERE / f"{name}.py"]).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
