"""Where an accumulation window ends.

The n-th call of step() is a boundary when n is a multiple of the accumulation steps, unless
the script says itself where boundaries are, or the config turns the counting off.
"""

from dsengine.counters import Counters


class Accumulation:
    """Decides, from the counters alone, whether the micro batch in work ends a window."""

    def __init__(self, steps: int, managed: bool, counters: Counters) -> None:
        self.steps = steps
        self.forced: bool | None = None
        """Set by the script; holds until it is set again."""
        self._managed = managed
        self._counters = counters

    @property
    def is_boundary(self) -> bool:
        if self.forced is not None:
            return self.forced
        if not self._managed:
            return True
        return (self._counters.micro_steps + 1) % self.steps == 0
