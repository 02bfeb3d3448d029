"""A clock that the test moves: waits take no time."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Clock:
    """``clock()`` returns the seconds, as ``time.monotonic`` does."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.at: dict[float, Callable[[], object]] = {}
        """What happens at a time, during a wait."""

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move the clock, and let happen what is due."""
        self.now += seconds
        for due in [each for each in self.at if each <= self.now]:
            self.at.pop(due)()


class Received(threading.Condition):
    """A condition on which no thread waits: the clock moves to the end of the wait instead."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        assert timeout is not None
        if not predicate():
            self._clock.sleep(timeout)
        return predicate()
