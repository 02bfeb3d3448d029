"""Run the test suite; `make test` and `make test-all` call this.

PYTHONPATH=tests python -m suite test [PART ...]     lint, unit, engine
PYTHONPATH=tests python -m suite all [SLICE ...]     slices that have not passed with these files
"""

import argparse
import sys

from suite import running
from suite.parts import SLICES, TEST


def main() -> int:
    """Parse the command line, run, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m suite")
    parser.add_argument("what", choices=("test", "all"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    known = ["lint", *(part.name for part in TEST)] if arguments.what == "test" else [*SLICES]
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"no such part: {', '.join(unknown)} (choose from {', '.join(known)})")
    run = running.test if arguments.what == "test" else running.test_all
    return run(arguments.names)


if __name__ == "__main__":
    sys.exit(main())
