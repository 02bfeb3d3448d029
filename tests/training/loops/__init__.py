"""Training scripts as written for DeepSpeed; each imports ``deepspeed`` and has a main().

dsengine must run them with only the imports changed. Tests read these files, change the imports and
run them; live tests run them unchanged.
"""
