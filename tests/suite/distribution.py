"""Build the wheel and the source archive as a release does."""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from suite.parts import ROOT

_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "runs", "build", "dist")


def build(folder: Path, *kinds: str) -> None:
    """Build distributions into ``folder`` from a copy of the checkout; ``--wheel`` and so on."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=_NOT_COPIED)
    command = [sys.executable, "-m", "build", *kinds, "--no-isolation", "--outdir", folder, source]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        build(Path(folder), "--wheel", "--sdist")
