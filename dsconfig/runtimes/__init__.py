"""Replays of the programs that read a ds_config: what each fills in, refuses and ignores.

base                   the interface of a program, and where values come from
dsengine, deepspeed, transformers, accelerate
                       one program each
reading, coercion      DeepSpeed's typed blocks, and how their values are converted
read_config            a config as DeepSpeed reads it, and failed checks of single keys
conditions             DeepSpeed's checks across keys
built                  the optimizer and the scheduler that DeepSpeed builds
settings, effective    typed settings with a release's defaults; a config without open values
behavior               replays of the other programs
"""

from dsconfig.runtimes.base import NAMES, AutoHandling, Runtime, every_runtime, runtime_of

__all__ = ["NAMES", "AutoHandling", "Runtime", "every_runtime", "runtime_of"]
