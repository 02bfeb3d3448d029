"""The schedule of a pipeline: one list of events per stage, which dsengine executes and the
estimates fold into micro batches in flight and idle time.

[Note: 1F1B] Stage s of p runs p - s - 1 forwards ahead, then one forward and one backward in turn
(Narayanan et al. 2021, arXiv:2104.04473, section 2.2). Neighbors list their messages in the same
order: each stage receives the gradients of a micro batch before it sends the outputs of the next
one, which the stage after it receives once it has sent those gradients. So no list can deadlock,
even if a send waits for its receiver.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple


class Action(StrEnum):
    """What a stage does with a micro batch. Only inner boundaries of a pipeline have messages."""

    RECEIVE_INPUTS = "receive inputs"
    FORWARD = "forward"
    SEND_OUTPUTS = "send outputs"
    RECEIVE_GRADIENTS = "receive gradients"
    BACKWARD = "backward"
    SEND_GRADIENTS = "send gradients"
    FREE = "free"
    """Free the activations of the micro batch."""
    REDUCE = "reduce"
    """Sum the gradients of weights that several stages have, at the end of a step."""


class Event(NamedTuple):
    """An action on one micro batch; a reduction is on the last one."""

    action: Action
    micro_batch: int


@cache
def training_events(stage: int, stages: int, micro_batches: int) -> tuple[Event, ...]:
    """Return the events of one stage in a step. [Note: 1F1B]"""
    return tuple(_training(stage, stages, micro_batches))


def _training(stage: int, stages: int, micro_batches: int) -> Iterator[Event]:
    is_first, is_last = stage == 0, stage == stages - 1
    ahead = min(stages - stage - 1, micro_batches)
    for each in range(micro_batches + ahead):
        before = each - ahead
        if each < micro_batches:
            if not is_first:
                yield Event(Action.RECEIVE_INPUTS, each)
            yield Event(Action.FORWARD, each)
        if before >= 0 and not is_last:
            yield Event(Action.RECEIVE_GRADIENTS, before)
        if each < micro_batches and not is_last:
            yield Event(Action.SEND_OUTPUTS, each)
        if before >= 0:
            yield Event(Action.BACKWARD, before)
            if not is_first:
                yield Event(Action.SEND_GRADIENTS, before)
            yield Event(Action.FREE, before)
    yield Event(Action.REDUCE, micro_batches - 1)


@cache
def evaluation_events(stage: int, stages: int, micro_batches: int) -> tuple[Event, ...]:
    """Return the events of one stage in an evaluation without gradients."""
    return tuple(
        Event(action, each)
        for each in range(micro_batches)
        for action, is_needed in (
            (Action.RECEIVE_INPUTS, stage > 0),
            (Action.FORWARD, True),
            (Action.SEND_OUTPUTS, stage < stages - 1),
            (Action.FREE, True),
        )
        if is_needed
    )


def most_in_flight(events: Sequence[Event]) -> int:
    """Return the most micro batches whose activations exist at once."""
    changes = {Action.FORWARD: 1, Action.FREE: -1}
    current = most = 0
    for event in events:
        current += changes.get(event.action, 0)
        most = max(most, current)
    return most


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Return the most micro batches in flight on a stage."""
    # More micro batches than stages change nothing.
    return most_in_flight(training_events(stage, stages, max(1, min(micro_batches, stages))))


@cache
def idle_passes(stages: int) -> float:
    """Return the time that each stage is idle in a step, in units of one micro batch's forward and
    backward on one stage. It is the same for every number of micro batches."""
    return finish_time(stages, 1) - 1.0


_SECONDS = {Action.FORWARD: 1 / 3, Action.BACKWARD: 2 / 3}
"""A backward takes two forwards; together one unit."""
_AWAITED = {
    Action.RECEIVE_INPUTS: (Action.SEND_OUTPUTS, -1),
    Action.RECEIVE_GRADIENTS: (Action.SEND_GRADIENTS, 1),
}
"""The event that ends before a receive, and the stage relative to the receiver's."""


def finish_time(stages: int, micro_batches: int) -> float:
    """Return the time until the last stage to finish has run its events; messages take none."""
    pending = [
        (stage, [*training_events(stage, stages, micro_batches)][::-1]) for stage in range(stages)
    ]
    clocks = [0.0] * stages
    ended: dict[tuple[int, Event], float] = {}
    while any(events for _, events in pending):
        for stage, events in pending:
            while events:
                event = events[-1]
                if event.action in _AWAITED:
                    action, offset = _AWAITED[event.action]
                    sent = ended.get((stage + offset, Event(action, event.micro_batch)))
                    if sent is None:
                        break
                    clocks[stage] = max(clocks[stage], sent)
                clocks[stage] += _SECONDS.get(event.action, 0.0)
                ended[stage, event] = clocks[stage]
                events.pop()
    return max(clocks)
