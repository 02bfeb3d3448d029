"""Run the command line from a checkout: ``python cli.py validate ds.json``."""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent / "engine"))

from dsconfig.__main__ import main

if __name__ == "__main__":
    main()
