"""Replays of the programs that read a ds_config: what each fills in and ignores.

base                   the interface of a program
replay                 the result of replaying one: the config, reasons for values, failures
dsengine, deepspeed, transformers, accelerate
                       one program each: its settings, and what it fills in
plugin, integrations   accelerate's DeepSpeedPlugin, and lookups of both Hugging Face programs
reading, coercion      DeepSpeed's typed blocks, and how their values are converted
config_view            the view of a config: written, read by DeepSpeed, decided by facts
built                  the optimizer and the scheduler that DeepSpeed builds
settings, effective    typed settings with a release's defaults; a config without open values
"""

from dsconfig.runtimes.base import NAMES, AutoHandling, Runtime, every_runtime, runtime_of

__all__ = ["NAMES", "AutoHandling", "Runtime", "every_runtime", "runtime_of"]
