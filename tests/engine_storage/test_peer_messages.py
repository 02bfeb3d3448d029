"""Which messages of other ranks are failures, and how long a phase may run after one."""

import os
import threading
from collections.abc import Callable
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from dsengine.communication.peers import abort, watch
from dsengine.communication.peers.links import Server
from dsengine.communication.peers.message import Message, MessageKind
from dsengine.communication.peers.status import Status
from engine_storage.moving_clock import Clock
from suite.limits import scaled

JOINED, LEFT = MessageKind.JOINED, MessageKind.LEFT
FAILED, DIED = MessageKind.FAILED, MessageKind.DIED


def message(kind: MessageKind, rank: int = 1, **fields: Any) -> Message:
    return Message(rank, "node-b", 7, kind, **fields)


class Group:
    """The default group, seen from rank 0 of 3."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 3


class Link:
    """Rank 0's side without connections."""

    address = SimpleNamespace(to_bytes=bytes)

    def __init__(self, *_: object) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def close(self) -> None: ...


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> Status:
    """A rank in its second step, before the first collective."""
    status = Status()
    status.counters, status.steps, status.phase = SimpleNamespace(global_steps=1), 1, "step"
    monkeypatch.setattr(watch, "STATUS", status)
    monkeypatch.setattr(abort, "STATUS", status)
    return status


@pytest.fixture
def watched(status: Status, monkeypatch: pytest.MonkeyPatch) -> watch.Watch:
    group = Group()
    monkeypatch.setenv("DSENGINE_PATIENCE", "inf")
    monkeypatch.setattr(watch, "Server", Link)
    monkeypatch.setattr(watch, "end_if_stuck", lambda: None)
    monkeypatch.setattr(watch.dist, "group", SimpleNamespace(WORLD=group))
    made = watch.Watch(group, SimpleNamespace(set=lambda *_: None))
    made.engines = made.built = 1
    return made


def receive(watched: watch.Watch, *messages: Message) -> None:
    for each in messages:
        watched._on_message(each)


class TestStateChanges:
    @pytest.mark.parametrize("kind", [FAILED, DIED])
    def test_rank_that_ends_before_it_has_left_fails(
        self, watched: watch.Watch, status: Status, kind: MessageKind
    ) -> None:
        receive(watched, message(JOINED), message(kind))
        assert status.failure == message(kind)

    def test_first_failure_is_kept(self, watched: watch.Watch, status: Status) -> None:
        first = message(FAILED, cause="ValueError: no label")
        receive(watched, first, message(DIED, rank=2), message(DIED))
        assert status.failure == first

    def test_connection_closes_after_a_rank_has_left(
        self, watched: watch.Watch, status: Status
    ) -> None:
        receive(watched, message(LEFT, progress=9.0, engines=1), message(DIED))
        assert status.failure is None
        receive(watched, message(DIED, rank=2))
        assert status.failure == message(DIED, rank=2)

    def test_failure_remains_if_the_rank_then_leaves(
        self, watched: watch.Watch, status: Status
    ) -> None:
        failed = message(FAILED, cause="ValueError: no label")
        receive(watched, failed, message(LEFT, progress=9.0, engines=1), message(JOINED))
        assert status.failure == failed
        assert watched.failure_reason(0.0) == failed.description

    def test_rank_that_joins_again_may_die(self, watched: watch.Watch, status: Status) -> None:
        left = message(LEFT, progress=9.0, engines=1)
        receive(watched, left, message(JOINED, engines=2), message(DIED))
        assert status.failure == message(DIED)

    def test_rank_that_left_too_early_has_failed_until_it_joins_again(
        self, watched: watch.Watch, status: Status
    ) -> None:
        left = message(LEFT, progress=status.progress - 1.0, engines=1)
        status.needs_all = True
        receive(watched, left)
        assert status.failure == left
        receive(watched, message(JOINED, engines=2))
        assert status.failure is None and watched.departure(status.progress) is None

    @pytest.mark.parametrize(
        ("needs_all", "behind", "engines"), [(False, 1.0, 1), (True, 0.0, 1), (True, 1.0, 0)]
    )
    def test_rank_may_leave_when_none_waits_for_it(
        self,
        watched: watch.Watch,
        status: Status,
        needs_all: bool,
        behind: float,
        engines: int,
    ) -> None:
        """In a phase without collectives, after the same phase, or from an earlier engine."""
        status.needs_all = needs_all
        receive(watched, message(LEFT, progress=status.progress - behind, engines=engines))
        assert status.failure is None

    def test_rank_that_left_is_the_reason_without_a_failure(self, watched: watch.Watch) -> None:
        left = message(LEFT, progress=9.0, engines=1)
        receive(watched, left)
        assert watched.failure_reason(0.0) == left.description
        receive(watched, message(DIED, rank=2))
        assert watched.failure_reason(0.0) == message(DIED, rank=2).description

    def test_own_messages_and_those_of_other_groups_are_ignored(
        self, watched: watch.Watch, status: Status, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        receive(watched, message(FAILED, rank=0))
        monkeypatch.setattr(watch.dist, "group", SimpleNamespace(WORLD=Group()))
        receive(watched, message(FAILED))
        assert status.failure is None

    def test_nothing_is_sent_after_a_failure(self, watched: watch.Watch) -> None:
        for kind in (JOINED, FAILED, LEFT):
            watched.report(kind)
        assert [each.kind for each in watched._link.sent] == [JOINED, FAILED]  # type: ignore[union-attr]


class ObservedServer(Server):
    """Rank 0's side, which lets the test wait for the end of a connection."""

    def __init__(self, on_message: Callable[[Message], None]) -> None:
        self.ended: Queue[None] = Queue()
        super().__init__(message(JOINED, rank=0), ["127.0.0.1"], on_message)

    def _on_disconnect(self, client: Any) -> None:
        super()._on_disconnect(client)
        self.ended.put(None)


@pytest.mark.parametrize("last", [JOINED, LEFT, FAILED])
def test_closed_connection_means_death_unless_there_was_a_final_message(last: MessageKind) -> None:
    import socket

    received: list[MessageKind] = []
    server = ObservedServer(lambda each: received.append(each.kind))
    with socket.create_connection(("127.0.0.1", server.address.port)) as rank:
        rank.sendall(server.address.question.encode() + b" " + message(JOINED).to_line())
        rank.sendall(message(last).to_line())
        rank.shutdown(socket.SHUT_WR)
        server.ended.get(timeout=scaled(30))
    server.close()
    server.thread.join(scaled(30))
    assert received == [JOINED, last, *([DIED] if last is JOINED else [])]


class Stuck:
    """A rank in a phase after another one has failed, and what is done to it at which second."""

    def __init__(self, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.status = Clock(), status
        self.done: dict[str, float] = {}
        self.start = self.clock()
        status.failure = message(DIED)
        time = SimpleNamespace(monotonic=self.clock, sleep=self.clock.sleep)
        monkeypatch.setattr(abort, "time", time)
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr(abort, "abort_communicators", lambda: self.note("aborted"))
        monkeypatch.setattr(os, "_exit", lambda code: self.note(f"exited with {code}"))

    def note(self, what: str) -> None:
        self.done[what] = round(self.clock() - self.start, 1)

    def end_phase_after(self, seconds: float) -> None:
        self.clock.at[self.start + seconds] = lambda: setattr(self.status, "phase", None)

    def stand_still(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(abort, "_position", lambda: (1, 2))

    def move(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(abort, "_position", lambda: (1, int(self.clock() * 10)))


@pytest.fixture
def stuck(status: Status, monkeypatch: pytest.MonkeyPatch) -> Stuck:
    return Stuck(status, monkeypatch)


class TestAbort:
    GRACE = abort.GRACE_SECONDS
    AFTER = GRACE + 0.1
    """When a phase has had its time: it is looked at ten times per second."""

    def test_phase_on_cpu_that_ends_in_time_continues(
        self, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        stuck.end_phase_after(self.GRACE - 0.1)
        abort.end_if_stuck()
        assert stuck.done == {} and not stuck.status.aborted

    def test_phase_on_cpu_that_does_not_end_exits_with_the_reason(
        self, stuck: Stuck, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        abort.end_if_stuck()
        assert stuck.done == {"exited with 1": pytest.approx(self.AFTER, abs=0.11)}
        expected = f"this rank cannot finish step() of step 2: {message(DIED).description}"
        assert expected in capsys.readouterr().err

    def test_aborted_phase_may_end_within_the_same_time_again(self, stuck: Stuck) -> None:
        stuck.end_phase_after(2 * self.GRACE - 0.5)
        abort.end_if_stuck()
        assert stuck.done == {"aborted": pytest.approx(self.AFTER, abs=0.11)}
        assert stuck.status.aborted

    def test_aborted_phase_that_does_not_end_exits(self, stuck: Stuck) -> None:
        abort.end_if_stuck()
        assert stuck.done == {
            "aborted": pytest.approx(self.AFTER, abs=0.11),
            "exited with 1": pytest.approx(2 * self.AFTER, abs=0.21),
        }

    def test_abort_that_hangs_does_not_keep_the_rank_alive(
        self, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        release = threading.Event()
        monkeypatch.setattr(abort, "abort_communicators", release.wait)
        monkeypatch.setattr(abort, "GRACE_SECONDS", 0.1)
        abort.end_if_stuck()
        release.set()
        assert [*stuck.done] == ["exited with 1"] and stuck.status.aborted

    def test_script_that_waits_for_the_device_is_released(
        self, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The main thread waits, as in ``loss.item()``, outside of the engine."""
        stuck.status.phase = None
        stuck.stand_still(monkeypatch)
        abort.end_if_stuck()
        assert stuck.done == {"aborted": pytest.approx(self.GRACE, abs=0.11)}
        assert stuck.status.aborted

    def test_script_that_continues_without_the_engine_is_left_alone(
        self, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stuck.status.phase = None
        stuck.move(monkeypatch)
        after = stuck.start + 10 * self.GRACE
        stuck.clock.at[after] = lambda: setattr(stuck.status, "failure", None)
        abort.end_if_stuck()  # until an earlier failure is forgotten with its group
        assert stuck.done == {} and not stuck.status.aborted

    def test_main_thread_that_waits_is_seen_to_stand_still(self, stuck: Stuck) -> None:
        stuck.status.phase = None
        thread = threading.Thread(target=abort.end_if_stuck)
        thread.start()
        thread.join(scaled(60))
        assert [*stuck.done] == ["aborted"]
