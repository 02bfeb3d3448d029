"""DeepSpeed's names, module for module, for scripts that import them.

What scripts know as ``deepspeed.ops.adam`` is ``dsengine/deepspeed/ops/adam.py``; they import it as
``dsengine.ops.adam`` (``importing``). Nothing else in the engine is built on this room: a file here
hands on what another room does, under the name and with the arguments of DeepSpeed.
"""
