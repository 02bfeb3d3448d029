"""Run a script on the real DeepSpeed, on the CPU: python -m frameworks.real script.py ARGS..."""

import runpy
import sys

from training.live_jobs import real_deepspeed

if __name__ == "__main__":
    real_deepspeed()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
