"""The recovery scripts that DeepSpeed writes beside its checkpoints."""

from contextlib import suppress
from pathlib import Path

NAMES = ("zero_to_fp32.py", "zero_to_torch.py")
_SCRIPT = '''#!/usr/bin/env python
"""Export the full weights of a checkpoint in this folder: python {name} . weights/"""

from dsengine.utils.{module} import *  # noqa: F403
from dsengine.utils.{module} import main

if __name__ == "__main__":
    main()
'''


def write_recovery_scripts(root: Path, tag: str) -> None:
    """Write the scripts to ``root``, where ``tag`` was saved, unless they exist."""
    for name in NAMES:
        if (root / name).exists():
            continue
        new = root / tag / f".{name}"
        with suppress(FileNotFoundError):  # another save is replacing this tag, and writes it
            new.write_text(_SCRIPT.format(name=name, module=name.removesuffix(".py")))
            new.chmod(0o755)
            new.replace(root / name)
