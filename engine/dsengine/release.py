"""The DeepSpeed release whose interface this package implements, and its own version."""

import dsconfig

DEEPSPEED = "0.19.8"
VERSION = f"{DEEPSPEED}+dsengine.{dsconfig.__version__}"
"""DeepSpeed's release, for scripts that compare it, and our own after the plus sign."""
