"""Logging of collectives."""

from typing import Any

from dsconfig.schema.declare import Block, key


class CommsLogger(Block, since="0.7.0", closed="0.7.0"):
    """Communication logging; null raises while an absent key is fine."""

    enabled: bool = key(False, "Turns it on.")
    prof_all: bool = key(True, "Profiles every operation.")
    prof_ops: list[Any] = key([], "Names of operations to profile when prof_all is false.")
    verbose: bool = key(False, "Prints each operation at once.")
    debug: bool = key(False, "Adds the caller's name.")
