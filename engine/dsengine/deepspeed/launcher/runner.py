"""Where accelerate's launcher for several nodes leaves the environment of their processes."""

import os

DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")

__all__ = ["DEEPSPEED_ENVIRONMENT_NAME"]
