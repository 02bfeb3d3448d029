"""Names of ``deepspeed.module_inject``."""
