"""Error feedback for ZeRO's quantised gradients."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number


class LoCo(Block, since="0.16.2", until="0.19.7", closed="0.16.2"):
    """Error feedback for quantised gradients."""

    err_beta: Number = key(0.8, "Averaging factor of the error.")
    reset_T: Integer = key(1024, "Steps after which the error is forgotten.", unit="steps")
