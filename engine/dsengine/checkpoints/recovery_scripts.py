"""The scripts that DeepSpeed leaves beside its checkpoints, here as there."""

from contextlib import suppress
from pathlib import Path

NAMES = ("zero_to_fp32.py", "zero_to_torch.py")
_SCRIPT = '''#!/usr/bin/env python
"""Whole weights of a checkpoint in this folder: python {name} . weights/"""

from dsengine.utils.{module} import *  # noqa: F403
from dsengine.utils.{module} import main

if __name__ == "__main__":
    main()
'''


def write_recovery_scripts(root: Path, tag: str) -> None:
    """Put the scripts into ``root``, where ``tag`` was saved, unless they are there."""
    for name in NAMES:
        if (root / name).exists():
            continue
        aside = root / tag / f".{name}"
        with suppress(FileNotFoundError):  # another save takes this tag's place, and writes it
            aside.write_text(_SCRIPT.format(name=name, module=name.removesuffix(".py")))
            aside.chmod(0o755)
            aside.replace(root / name)
