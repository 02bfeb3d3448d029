"""DeepSpeed's names, module for module, for scripts that import them.

``deepspeed.ops.adam`` is implemented by ``dsengine/deepspeed/ops/adam.py`` and imported as
``dsengine.ops.adam`` (see ``importing``). The rest of the engine does not depend on this package:
its modules only re-export other modules with DeepSpeed's names and arguments.
"""
