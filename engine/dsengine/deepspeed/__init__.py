"""DeepSpeed's names, module for module, for scripts that import them.

``table`` states where the names of ``deepspeed.ops.adam`` live, ``importing`` imports it as
``dsengine.ops.adam``; ``dsconfig.features`` has the alternatives to names that live nowhere. The
rest of the engine does not depend on this package: its modules only add DeepSpeed's names and
arguments to others.
"""
