"""Which timers run."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import OrAbsent


class Throughput(Block, since="0.14.3", closed="0.14.3"):
    """The timer of samples per second."""

    enabled: bool = key(True, "Turns the timer on.")
    synchronized: bool = key(True, "Waits for the device, for exact figures.")


class Timers(Block, since="0.14.3"):
    """Which timers run."""

    throughput: OrAbsent[Throughput] = key(None, "The timer of samples per second.")
