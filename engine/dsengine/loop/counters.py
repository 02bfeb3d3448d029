"""Step and sample counters, counted as in DeepSpeed, and accumulation boundaries."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Counters:
    """Counters as in DeepSpeed.

    ``micro_steps`` counts step() calls, ``global_steps`` boundaries, including skipped ones.
    """

    micro_steps: int = 0
    global_steps: int = 0
    global_samples: int = 0
    skipped_steps: int = 0

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in asdict(self):
            setattr(self, name, state[name])


class Accumulation:
    """Decides from the counters whether the current micro batch ends an accumulation window.

    The n-th step() call is a boundary if n is a multiple of the accumulation steps, unless the
    script sets boundaries itself or the config turns counting off.
    """

    def __init__(self, steps: int, managed: bool, counters: Counters) -> None:
        self.steps = steps
        self.forced: bool | None = None
        """Set by the script; applies until it is set again."""
        self.is_managed = managed
        """Whether windows end by counting micro batches; otherwise at each ``step``."""
        self._counters = counters

    @property
    def is_boundary(self) -> bool:
        if self.forced is not None:
            return self.forced
        if not self.is_managed:
            return True
        return (self._counters.micro_steps + 1) % self.steps == 0

    def state_dict(self) -> dict[str, Any]:
        """Return the counters' state."""
        return self._counters.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the counters and start a new window, because checkpoints contain no gradients."""
        self._counters.load_state_dict(state)
        if self.is_managed:
            self._counters.micro_steps = self._counters.global_steps * self.steps

    def restart_window(self) -> None:
        """Make the next micro batch the first of a window, if windows are counted."""
        if self.is_managed and self.forced is None:
            self._counters.micro_steps -= self._counters.micro_steps % self.steps
