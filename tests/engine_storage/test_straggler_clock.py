"""When stragglers are reported, with a clock that the test moves."""

import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dsengine.communication.peers import stragglers
from dsengine.communication.peers.message import Message, MessageKind
from dsengine.communication.peers.status import Status
from dsengine.communication.peers.stragglers import (
    MAX_NAMED,
    REPLY_SECONDS,
    StragglerDetector,
    straggler_report,
)
from engine_storage.moving_clock import Clock, Received

PATIENCE = 32.0
TICK = 0.25
RANKS = 3
JOINED, LEFT = MessageKind.JOINED, MessageKind.LEFT
WAITING, REQUEST = MessageKind.WAITING, MessageKind.STATUS_REQUEST
STEPS = SimpleNamespace(global_steps=1)


class Rank:
    """The detector of a rank that does what ``status`` describes, and what it sends."""

    def __init__(self, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.status = Clock(), Status()
        self.status.counters, self.status.steps = STEPS, 1
        self.leave("step")
        self.sent: list[MessageKind] = []
        self.replies = [reply(rank) for rank in (1, 2)]
        """What the others send when rank 0 requests their status."""
        self.rank_0_responds = True
        self.states: dict[int, Message] = {}
        monkeypatch.setattr(stragglers, "STATUS", self.status)
        self.detector = StragglerDetector(
            state(rank), self.states, RANKS, PATIENCE, self.send, self.clock
        )
        self.detector._received = Received(self.clock)

    def send(self, message: Message) -> None:
        self.sent.append(message.kind)
        if message.kind is REQUEST:
            for each in self.replies:
                self.detector.on_message(each)
        if message.kind is WAITING and self.rank_0_responds:
            self.detector.on_message(state(0, REQUEST))

    def enter(self, phase: str) -> None:
        self.status.phase, self.status.since = phase, self.clock()

    def leave(self, phase: str) -> None:
        self.status.phase, self.status.last, self.status.since = None, phase, self.clock()

    def sent_after(self, seconds: float) -> list[MessageKind]:
        """Return what it sends, except its own status, in a check after so many seconds."""
        self.clock.now += seconds
        self.sent.clear()
        self.detector.check()
        return [kind for kind in self.sent if kind is not MessageKind.STATUS]


def state(rank: int, kind: MessageKind = JOINED) -> Message:
    return Message(rank, f"node-{rank}", 100 + rank, kind)


def reply(rank: int, phase: str = "", seconds: float = 0.0, progress: float = 4.0) -> Message:
    return Message(
        *(rank, f"node-{rank}", 100 + rank, MessageKind.STATUS),
        phase=phase,
        last="step(), 1 step(s) done",
        location=f"train.py:{rank} (load)",
        seconds=seconds,
        progress=progress,
    )


@pytest.fixture(params=[0, 1])
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Rank:
    """Rank 0, which reports, and a rank that requests a report."""
    return Rank(request.param, monkeypatch)


@pytest.fixture
def rank_0(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(0, monkeypatch)


@pytest.fixture
def rank_1(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(1, monkeypatch)


def reports(rank: Rank) -> list[MessageKind]:
    """Return what it sends when it has waited too long."""
    return [REQUEST] if rank.detector._own.rank == 0 else [WAITING]


def test_wait_is_reported_after_patience_and_not_before(rank: Rank) -> None:
    rank.enter("forward")
    assert rank.sent_after(0.0) == []
    assert rank.sent_after(PATIENCE - TICK) == []
    assert rank.sent_after(TICK) == reports(rank)


def test_each_report_doubles_the_time_to_the_next(rank: Rank) -> None:
    rank.enter("forward")
    assert rank.sent_after(PATIENCE) == reports(rank)
    for wait in (PATIENCE, 2 * PATIENCE, 4 * PATIENCE):
        assert rank.sent_after(wait - TICK) == []
        assert rank.sent_after(TICK) == reports(rank)


def test_time_doubles_from_a_late_check(rank: Rank) -> None:
    rank.enter("forward")
    assert rank.sent_after(PATIENCE + 8) == reports(rank)
    assert rank.sent_after(PATIENCE + 8 - TICK) == []
    assert rank.sent_after(TICK) == reports(rank)


@pytest.mark.parametrize("is_checked_between", [True, False])
def test_patience_begins_again_with_the_next_phase(rank: Rank, is_checked_between: bool) -> None:
    rank.enter("forward")
    assert rank.sent_after(PATIENCE) == reports(rank)
    rank.leave("forward")
    if is_checked_between:
        assert rank.sent_after(0.0) == []
    rank.enter("backward")
    assert rank.sent_after(PATIENCE - TICK) == []
    assert rank.sent_after(TICK) == reports(rank)


def test_rank_outside_of_the_engine_does_not_wait(rank: Rank) -> None:
    for _ in range(5):
        assert rank.sent_after(10 * PATIENCE) == []


def test_rank_0_reports_what_another_rank_waits_for(
    rank_0: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_0.replies[0] = reply(1, "forward() of step 2", PATIENCE, progress=5.0)
    rank_0.replies[1] = reply(2, "forward() of step 2", PATIENCE, progress=5.0)
    rank_0.clock.now += PATIENCE
    rank_0.detector.on_message(state(1, WAITING))
    assert rank_0.sent_after(0.0) == [REQUEST]
    assert rank_0.sent_after(TICK) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "dsengine: ranks 1, 2 have been waiting in forward() of step 2 for 32 s: rank 0 (host "
        "node-0, process 100) has been outside of the engine for 32 s (last: step(), 1 step(s) "
        "done), at "
    )


def test_requests_within_half_the_patience_share_a_report(rank_0: Rank) -> None:
    rank_0.detector.on_message(state(1, WAITING))
    assert rank_0.sent_after(0.0) == [REQUEST]
    rank_0.detector.on_message(state(2, WAITING))
    rank_0.detector.on_message(state(1, WAITING))
    assert rank_0.sent_after(PATIENCE / 2 - TICK) == []
    assert rank_0.sent_after(TICK) == [REQUEST]
    assert rank_0.sent_after(PATIENCE) == []


def test_every_rank_replies_with_its_status(rank: Rank) -> None:
    rank.enter("backward")
    rank.detector.on_message(state(0, REQUEST))
    assert rank.sent == [MessageKind.STATUS]


def test_silent_ranks_are_named_after_a_moment(
    rank_0: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_0.states |= {1: state(1), 2: state(2)}
    rank_0.replies = [reply(1)]
    rank_0.enter("forward")
    start = rank_0.clock()
    assert rank_0.sent_after(PATIENCE) == [REQUEST]
    assert rank_0.clock() == start + PATIENCE + REPLY_SECONDS
    assert (
        "dsengine: rank 0 has been waiting in forward() of step 2 for 32 s: rank 1 (host node-1, "
        "process 101) has been outside of the engine for 0 s (last: step(), 1 step(s) done), at "
        "train.py:1 (load); rank 2 (host node-2, process 102) does not respond: its interpreter "
        "is busy, or it is stopped"
    ) in capsys.readouterr().err


def test_replies_are_not_waited_for_when_all_have_arrived(rank_0: Rank) -> None:
    rank_0.enter("forward")
    start = rank_0.clock()
    assert rank_0.sent_after(PATIENCE) == [REQUEST]
    assert rank_0.clock() == start + PATIENCE


def test_rank_that_has_left_is_named(rank_0: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    rank_0.states |= {1: state(1), 2: state(2, LEFT)}
    rank_0.replies = [reply(1, "forward() of step 2", PATIENCE, progress=5.0)]
    rank_0.enter("forward")
    rank_0.sent_after(PATIENCE)
    assert (
        "ranks 0, 1 have been waiting in forward() of step 2 for 32 s: rank 2 (host node-2, "
        "process 102) had already ended its training"
    ) in capsys.readouterr().err


def test_rank_0_that_does_not_respond_is_named(
    rank_1: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_1.enter("forward")
    assert rank_1.sent_after(PATIENCE) == [WAITING]
    assert capsys.readouterr().err == ""
    rank_1.rank_0_responds = False
    assert rank_1.sent_after(PATIENCE) == [WAITING]
    seconds = 3 * PATIENCE + REPLY_SECONDS  # rank 0 checks as often as this rank
    assert capsys.readouterr().err == (
        f"dsengine: this rank, 1, has been in forward() of step 2 for {seconds:.0f} s, and rank 0 "
        "does not respond: its interpreter is busy, or it is stopped\n"
    )


@pytest.mark.parametrize("event", ["phase ends", "rank fails"])
def test_rank_0_is_not_named_when_the_wait_is_over(
    rank_1: Rank, event: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_1.rank_0_responds = False
    rank_1.enter("forward")

    def end() -> None:
        if event == "phase ends":
            rank_1.leave("forward")
        else:
            rank_1.status.failure = state(2, MessageKind.DIED)

    rank_1.clock.at[rank_1.clock() + PATIENCE + TICK] = end
    assert rank_1.sent_after(PATIENCE) == [WAITING]
    assert capsys.readouterr().err == ""


def test_equal_phases_are_reported_after_ten_times_the_patience() -> None:
    same: dict[str, Any] = {"phase": "step() of step 2", "progress": 7.0}
    early = [reply(rank, seconds=10 * PATIENCE - TICK, **same) for rank in range(2)]
    assert straggler_report(early, [], PATIENCE) == ""
    late = [reply(rank, seconds=10 * PATIENCE, **same) for rank in range(2)]
    assert straggler_report(late, [], PATIENCE).startswith(
        "all ranks have been in step() of step 2 for 320 s; rank 0 (host node-0"
    )


def test_short_waits_are_not_reported() -> None:
    """A rank may have requested a report for a phase that has ended since then."""
    short = [reply(0), reply(1, "step() of step 2", 0.8 * PATIENCE, progress=7.0)]
    assert straggler_report(short, [], PATIENCE) == ""
    assert straggler_report([reply(0), reply(1)], [state(2)], PATIENCE) == ""


def test_ranks_in_different_phases_wait_for_each_other() -> None:
    replies = [reply(0, "save()", PATIENCE), reply(1, "load()", PATIENCE), reply(2)]
    assert straggler_report(replies, [], PATIENCE).startswith(
        "ranks have been in different phases for 32 s: rank 0 (host node-0, process 100) has been "
        "in save() for 32 s, at train.py:0 (load); rank 1"
    )


def test_long_lists_are_shortened() -> None:
    waits = [reply(rank, "step() of step 2", PATIENCE, progress=7.0) for rank in range(20)]
    behind = [reply(rank) for rank in range(20, 40)]
    report = straggler_report(waits + behind, [], PATIENCE)
    assert report.startswith("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more have been waiting in")
    assert report.count("(host") == MAX_NAMED and report.endswith("; 12 more ranks are behind")


def test_infinite_patience_starts_no_thread() -> None:
    detector = StragglerDetector(state(0), {}, RANKS, math.inf, lambda message: None)
    before = threading.active_count()
    detector.start()
    assert threading.active_count() == before
    detector.close()
