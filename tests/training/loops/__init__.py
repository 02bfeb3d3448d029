"""Training scripts as they are written for DeepSpeed: each imports ``deepspeed`` and has a main().

``dsengine`` is to run every line of them but the imports. Tests read these files, change the
imports and run the rest; the live tests run them as they are.
"""
