"""Vector clocks of streams, host threads and events.

Each timeline counts its operations. Its clock contains, by timeline, the last operation that is
known to be finished before its next one. Streams learn from events and from the thread that
launches an operation; a thread learns from what it waits for.
"""

from collections.abc import Iterator
from contextlib import contextmanager

Clock = dict["Timeline", int]


class Timeline:
    """A sequence of operations: those of a stream, or of a host thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock: Clock = {}

    def __repr__(self) -> str:
        return self.name

    def join(self, clock: Clock) -> None:
        """Let later operations come after those in ``clock``."""
        own = self.clock
        for timeline, number in clock.items():
            if number > own.get(timeline, 0):
                own[timeline] = number

    def tick(self) -> int:
        """Count an operation; return its number."""
        number = self.clock[self] = self.clock.get(self, 0) + 1
        return number

    def knows(self, timeline: "Timeline", number: int) -> bool:
        """Whether that operation is finished before the next one here."""
        return timeline is self or self.clock.get(timeline, 0) >= number


class Schedule:
    """The streams of a device, and the thread and stream that are current.

    ``waits``: each time that the main thread has waited for the device, with the source line.
    """

    def __init__(self) -> None:
        self.default = Timeline("default stream")
        self.streams = [self.default]
        self.stream = self.default
        self.host = Timeline("main thread")
        self.main = self.host
        self.waits: list[str] = []
        self.on_device = {self.main}
        """Threads that have set their device."""
        self.on_wrong_device: list[str] = []
        """Uses of the device by other threads."""

    def new_stream(self, name: str = "") -> Timeline:
        stream = Timeline(name or f"stream {len(self.streams)}")
        self.streams.append(stream)
        return stream

    def launch(self, stream: Timeline, place: str) -> int:
        """Count an operation that the current thread launches on ``stream``."""
        self._use_device(place)
        stream.join(self.host.clock)
        return stream.tick()

    def wait(self, clock: Clock, place: str) -> None:
        """Make the current thread wait for the device."""
        self._use_device(place)
        self.host.join(clock)
        if self.host is self.main:
            self.waits.append(place)

    def _use_device(self, place: str) -> None:
        if self.host not in self.on_device:
            self.on_wrong_device.append(f"{self.host}: {place}")

    @contextmanager
    def on_stream(self, stream: Timeline | None) -> Iterator[None]:
        before, self.stream = self.stream, stream or self.stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def on_thread(self, thread: Timeline) -> Iterator[None]:
        """Run in another thread, whose current stream is the default one."""
        before, self.host = self.host, thread
        try:
            with self.on_stream(self.default):
                yield
        finally:
            self.host = before
