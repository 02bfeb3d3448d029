"""A second name of ``dsengine.deepspeed.runtime.zero``, with all that it has."""

from dsengine.deepspeed.runtime.zero import *  # noqa: F403
from dsengine.deepspeed.runtime.zero import __all__  # noqa: F401
