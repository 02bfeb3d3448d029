"""What each program that is handed a ds_config reads, fills, refuses, ignores and allocates.

base                   the questions everybody asks of a program, and where a value comes from
dsengine, deepspeed, transformers, accelerate
                       the answers of each, "auto" key by key
reading, coercion      DeepSpeed's typed blocks applied to a config; what is taken for what
read_config            a config as DeepSpeed reads it, and what it demands and does not get
conditions             what DeepSpeed wants of several keys together
built                  the optimizer and the schedule that the types lead to
settings, effective    typed settings with the defaults of a release; a config with nothing open
behaviour              the other programs, replayed
"""

from dsconfig.runtimes.base import NAMES, AutoHandling, Runtime, every_runtime, runtime_of

__all__ = ["NAMES", "AutoHandling", "Runtime", "every_runtime", "runtime_of"]
