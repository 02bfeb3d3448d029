"""Alias of ``dsengine.deepspeed.runtime.zero``."""

from dsengine.deepspeed.runtime.zero import *  # noqa: F403
from dsengine.deepspeed.runtime.zero import __all__  # noqa: F401
