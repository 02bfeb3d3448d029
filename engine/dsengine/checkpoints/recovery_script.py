"""The script that DeepSpeed leaves beside its checkpoints, here as there."""

from contextlib import suppress
from pathlib import Path

NAME = "zero_to_fp32.py"
_SCRIPT = '''#!/usr/bin/env python
"""Whole weights of a checkpoint in this folder: python zero_to_fp32.py . weights/"""

from dsengine.utils.zero_to_fp32 import *  # noqa: F403
from dsengine.utils.zero_to_fp32 import main

if __name__ == "__main__":
    main()
'''


def write_recovery_script(root: Path, tag: str) -> None:
    """Put the script into ``root``, where ``tag`` was saved, unless there is one."""
    if (root / NAME).exists():
        return
    aside = root / tag / f".{NAME}"
    with suppress(FileNotFoundError):  # another save takes this tag's place, and writes it
        aside.write_text(_SCRIPT)
        aside.chmod(0o755)
        aside.replace(root / NAME)
