"""What each program that is handed a ds_config reads, fills, refuses, ignores and allocates."""

from dsconfig.runtimes.base import NAMES, AutoFate, Runtime, every_runtime, runtime_of

__all__ = ["NAMES", "AutoFate", "Runtime", "every_runtime", "runtime_of"]
