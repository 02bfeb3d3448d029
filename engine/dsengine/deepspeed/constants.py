"""Names of launchers' environment variables, and defaults."""

from dsengine.communication.environment import DEFAULT_PORT as TORCH_DISTRIBUTED_DEFAULT_PORT
from dsengine.communication.start import default_timeout

CROSS_RANK = "CROSS_RANK"
CROSS_SIZE = "CROSS_SIZE"
LOCAL_RANK = "LOCAL_RANK"
default_pg_timeout = default_timeout()

__all__ = [
    "CROSS_RANK",
    "CROSS_SIZE",
    "LOCAL_RANK",
    "TORCH_DISTRIBUTED_DEFAULT_PORT",
    "default_pg_timeout",
]
