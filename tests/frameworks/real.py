"""Run a script on the real DeepSpeed, on the CPU: python -m frameworks.real script.py ARGS..."""

import runpy
import sys
from typing import Any

from training.live_jobs import real_deepspeed


def on_the_host() -> None:
    """The real DeepSpeed, which leaves fp16 to machines with a card or another CPU."""
    accelerator: Any = real_deepspeed().accelerator.get_accelerator()
    accelerator.is_fp16_supported = lambda: True


def without_broadcast() -> None:
    """Let one process train parameters without a dimension in 16 bits.

    DeepSpeed 0.19.8 broadcasts a model as bytes, as which torch shows no such parameter; a process
    that is alone has nobody to broadcast to.
    """
    from deepspeed.runtime.engine import DeepSpeedEngine  # type: ignore[import-untyped]

    DeepSpeedEngine._broadcast_model = lambda self: None


if __name__ == "__main__":
    on_the_host()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
