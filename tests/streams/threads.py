"""Threads and queues of the engine, run one after the other in a fixed order.

A task runs when it is submitted, on the timeline of its thread. What orders it relative to other
threads is recorded: the submission, its result, and queues. Races are found all the same, because
they follow from what orders two operations, not from when they happen to run.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import cycle
from typing import Any, Generic, TypeVar

from streams.clocks import Clock, Schedule, Timeline

T = TypeVar("T")


class Result(Future[T], Generic[T]):
    """What a task returns; reading it orders the reader behind the task."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule
        self.done_at: Clock = {}

    def result(self, timeout: float | None = None) -> T:
        self._schedule.host.join(self.done_at)
        return super().result(timeout)


class Threads:
    """A ThreadPoolExecutor."""

    def __init__(
        self,
        schedule: Schedule,
        count: int | None = None,
        thread_name_prefix: str = "thread",
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._schedule = schedule
        self.timelines = [Timeline(f"{thread_name_prefix} {n}") for n in range(count or 1)]
        self._next = cycle(self.timelines)
        for thread in self.timelines:
            if initializer is not None:
                with schedule.on_thread(thread):
                    initializer(*initargs)

    def submit(self, do: Callable[..., T], *args: Any, **kwargs: Any) -> "Result[T]":
        result = Result[T](self._schedule)
        thread = next(self._next)
        thread.join(self._schedule.host.clock)
        with self._schedule.on_thread(thread):
            try:
                result.set_result(do(*args, **kwargs))
            except BaseException as error:
                result.set_exception(error)
        result.done_at = dict(thread.clock)
        return result

    def map(self, do: Callable[..., T], *values: Any) -> list[T]:
        return [each.result() for each in [self.submit(do, *v) for v in zip(*values, strict=True)]]

    def shutdown(self, *_: Any, **__: Any) -> None:
        """Order the caller behind all tasks."""
        for thread in self.timelines:
            self._schedule.host.join(thread.clock)

    def __enter__(self) -> "Threads":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class Queue(Generic[T]):
    """A queue: ``get`` orders the reader behind the ``put`` of what it gets."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._items: deque[tuple[T, Clock]] = deque()

    def put(self, item: T) -> None:
        self._schedule.host.tick()
        self._items.append((item, dict(self._schedule.host.clock)))

    def get(self) -> T:
        """Return the oldest item. Raises IndexError where a real queue would wait forever."""
        item, clock = self._items.popleft()
        self._schedule.host.join(clock)
        return item


class ThreadLocal:
    """A ``threading.local``, whose attributes are those of the current simulated thread."""

    def __init__(self, schedule: Schedule) -> None:
        object.__setattr__(self, "_tables", defaultdict[Timeline, dict[str, Any]](dict))
        object.__setattr__(self, "_schedule", schedule)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return object.__getattribute__(self, "_tables")[
            object.__getattribute__(self, "_schedule").host
        ]
