"""What a run has done so far, counted as DeepSpeed counts it; where an accumulation window ends."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Counters:
    """``micro_steps`` counts calls of step(); ``global_steps`` boundaries, skipped ones too."""

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
    """Decides, from the counters alone, whether the micro batch in work ends a window.

    The n-th call of step() is a boundary when n is a multiple of the accumulation steps, unless
    the script says itself where boundaries are, or the config turns the counting off.
    """

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

    def state_dict(self) -> dict[str, Any]:
        """The counters', from which all the rest follows."""
        return self._counters.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the counters; a window begins there, for a checkpoint holds no gradients."""
        self._counters.load_state_dict(state)
        if self._managed:
            self._counters.micro_steps = self._counters.global_steps * self.steps

    def begin_window_anew(self) -> None:
        """Let the next micro batch be the first of a window, where the counters say what is."""
        if self._managed and self.forced is None:
            self._counters.micro_steps -= self._counters.micro_steps % self.steps
