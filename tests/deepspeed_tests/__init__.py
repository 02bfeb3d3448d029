"""DeepSpeed's own unit tests, run from a checkout with dsengine as ``deepspeed``."""
