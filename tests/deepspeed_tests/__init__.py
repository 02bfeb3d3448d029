"""DeepSpeed's own unit tests, run from a checkout of them with dsengine as their ``deepspeed``."""
