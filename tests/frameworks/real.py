"""Run a script on the real DeepSpeed, on the CPU: python -m frameworks.real script.py ARGS..."""

import runpy
import sys
from typing import Any

from training.live_jobs import real_deepspeed


def on_the_host() -> None:
    """The real DeepSpeed, which leaves fp16 to machines with a card or another CPU."""
    accelerator: Any = real_deepspeed().accelerator.get_accelerator()
    accelerator.is_fp16_supported = lambda: True


if __name__ == "__main__":
    on_the_host()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
