"""Timers."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import OrAbsent


class Throughput(Block, since="0.14.3", closed="0.14.3"):
    """Throughput timer."""

    enabled: bool = key(True, "Turns the timer on.")
    synchronized: bool = key(True, "Synchronises the device for exact numbers.")


class Timers(Block, since="0.14.3"):
    """Timer settings; only the throughput group is read."""

    throughput: OrAbsent[Throughput] = key(None, "Throughput timer.", since="0.14.3")
