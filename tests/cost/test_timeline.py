"""A timeline replayed in segments equals the one recorded allocation by allocation."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from dsconfig.cost.estimate import Phase
from dsconfig.cost.timeline import Category, Recorder, Timeline

PARTS = (
    Category("weights", ""),
    Category("bucket", "", communicated=True),
    Category("gathered", "", stream="gather"),
    Category("staging", "", stream="gather", communicated=True),
)
OTHERS = (Category("activations", ""), Category("states", "", stream="gather"))
Event = tuple[bool, int, int]

events = st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 50)), max_size=12)


def play_segment(line: Timeline, segment: list[Event]) -> None:
    for holds, part, amount in segment:
        (line.hold if holds else line.free)(PARTS[part], amount)


@given(st.lists(st.tuples(events, st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=6))
def test_replayed_segments_equal_the_original_run(
    turns: list[tuple[list[Event], int, int]],
) -> None:
    recorder = Recorder()
    recorded = []
    for segment, _, _ in turns:
        play_segment(recorder, segment)
        recorded.append(recorder.cut())

    def run(play: Callable[[Timeline, int], None]) -> Timeline:
        line = Timeline()
        line.hold(OTHERS[1], 17)
        for index, (_, allocated, freed) in enumerate(turns):
            line.hold(OTHERS[0], allocated)
            play(line, index)
            line.free(OTHERS[0], freed)
            if index == len(turns) // 2:
                line.enter(Phase.BACKWARD)
        return line

    one_by_one = run(lambda line, index: play_segment(line, turns[index][0])).trace()
    replayed = run(lambda line, index: line.replay(recorded[index])).trace()
    assert replayed == one_by_one
    assert replayed.components() == one_by_one.components()
