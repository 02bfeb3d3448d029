"""Schedules of pipelines: complete, free of deadlocks, and as the estimates count them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsconfig
from dsconfig.cost.activations import Activations
from dsconfig.cost.pipeline import activations_of_stage
from dsconfig.pipelines import (
    Action,
    Event,
    evaluation_events,
    finish_time,
    idle_passes,
    in_flight,
    most_in_flight,
    training_events,
)

STAGES, MICRO_BATCHES = st.integers(1, 9), st.integers(1, 20)
MATCHING = {
    Action.SEND_OUTPUTS: (1, Action.RECEIVE_INPUTS),
    Action.SEND_GRADIENTS: (-1, Action.RECEIVE_GRADIENTS),
}
"""The receive of each send, and its stage relative to the sender's."""
RECEIVES = {action for _, action in MATCHING.values()}


def left_over(lists: list[tuple[Event, ...]]) -> list[list[Event]]:
    """Run the lists with sends that wait for their receiver; return what is left of them."""
    left = [[*events][::-1] for events in lists]
    progress = True
    while progress:
        progress = False
        for stage, events in enumerate(left):
            while events and events[-1].action not in (*MATCHING, *RECEIVES):
                events.pop()
                progress = True
            if events and events[-1].action in MATCHING:
                offset, receive = MATCHING[events[-1].action]
                other = left[stage + offset]
                if other and other[-1] == Event(receive, events[-1].micro_batch):
                    events.pop()
                    other.pop()
                    progress = True
    return left


@given(STAGES, MICRO_BATCHES)
def test_lists_of_events_do_not_deadlock(stages: int, micro_batches: int) -> None:
    for made in (training_events, evaluation_events):
        lists = [made(stage, stages, micro_batches) for stage in range(stages)]
        assert not any(left_over(lists))


def test_lists_that_deadlock_are_found() -> None:
    swapped = (Event(Action.SEND_OUTPUTS, 0), Event(Action.RECEIVE_GRADIENTS, 0))
    other = (Event(Action.SEND_GRADIENTS, 0), Event(Action.RECEIVE_INPUTS, 0))
    assert any(left_over([swapped, other]))


@given(STAGES, MICRO_BATCHES)
def test_each_micro_batch_runs_once_on_each_stage(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        events = training_events(stage, stages, micro_batches)
        expected = {Action.FORWARD, Action.BACKWARD, Action.FREE}
        if stage > 0:
            expected |= {Action.RECEIVE_INPUTS, Action.SEND_GRADIENTS}
        if stage < stages - 1:
            expected |= {Action.SEND_OUTPUTS, Action.RECEIVE_GRADIENTS}
        assert events[-1] == Event(Action.REDUCE, micro_batches - 1)
        assert Counter(events[:-1]) == {
            Event(action, each): 1 for action in expected for each in range(micro_batches)
        }
        for each in range(micro_batches):
            places = {action: events.index(Event(action, each)) for action in expected}
            order = [
                action
                for action in (
                    *(Action.RECEIVE_INPUTS, Action.FORWARD, Action.SEND_OUTPUTS),
                    *(Action.RECEIVE_GRADIENTS, Action.BACKWARD, Action.SEND_GRADIENTS),
                    Action.FREE,
                )
                if action in expected and action is not Action.SEND_OUTPUTS
            ]
            assert sorted(order, key=places.__getitem__) == order
        backwards = [event.micro_batch for event in events if event.action is Action.BACKWARD]
        assert backwards == sorted(backwards), "the last backward reduces gradients"


@given(STAGES, MICRO_BATCHES)
def test_estimates_use_the_events(stages: int, micro_batches: int) -> None:
    activations = Activations(
        blocks=stages,
        per_block=1,
        recomputed=0,
        temporaries=0,
        outside=0,
        logits_forward=0,
        logits_backward=0,
    )
    for stage in range(stages):
        counted = most_in_flight(training_events(stage, stages, micro_batches))
        assert (
            counted == in_flight(stage, stages, micro_batches) == min(stages - stage, micro_batches)
        )
        of_stage = activations_of_stage(activations, stages, stage, stages, micro_batches)
        assert of_stage.in_flight == counted
    assert most_in_flight(evaluation_events(0, stages, micro_batches)) == 1


def test_a_stage_exchanges_its_own_weights() -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}
    traffic = {}
    for stages in (1, 4):
        facts = dsconfig.gather(gpus=4 * stages, model="gpt2", pipeline_parallel=stages)
        traffic[stages] = dsconfig.plan(dsconfig.resolve(config, facts), facts).traffic
    assert traffic[4]["all_gather"] == pytest.approx(traffic[1]["all_gather"] / 4, rel=1e-4)


@given(STAGES, MICRO_BATCHES)
def test_idle_time_does_not_depend_on_micro_batches(stages: int, micro_batches: int) -> None:
    """(p - 1) forwards and backwards, as in arXiv:2104.04473, section 2.2."""
    assert finish_time(stages, micro_batches) - micro_batches == pytest.approx(idle_passes(stages))
    assert idle_passes(stages) == pytest.approx(stages - 1)
