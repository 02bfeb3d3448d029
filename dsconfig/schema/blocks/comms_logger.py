"""A log of collectives."""

from typing import Any

from dsconfig.schema.declare import Block, key


class CommsLogger(Block, since="0.7.0", closed="0.7.0"):
    """A log of collectives, with sizes and times."""

    enabled: bool = key(False, "Turns the log on.")
    prof_all: bool = key(True, "Measures every operation.")
    prof_ops: list[Any] = key([], "Operations to measure where prof_all is false.")
    verbose: bool = key(False, "Prints each operation at once.")
    debug: bool = key(False, "Adds the name of the caller.")
