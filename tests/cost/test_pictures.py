"""What the pictures rest on: no two components share a colour, and words fit the data."""

import pytest

from dsconfig.cost.pictures import COLOURS, title
from dsconfig.cost.search import table
from dsconfig.facts.gathering import gather


@pytest.mark.parametrize("runtime", ["dsengine", "deepspeed"])
def test_every_component_has_a_colour_of_its_own(runtime: str) -> None:
    facts = gather(world_size=8, model="llama-2-13b", sequence_length=4096)
    found = table(facts, runtime=runtime)
    names = {part.name for option in found.options for part in option.device.components}
    assert len(names) <= len(COLOURS) == len(set(COLOURS))


def test_the_title_counts_right() -> None:
    assert title(table(gather(world_size=1, params="7e9"))) == "7e9 parameters on 1 GPU"
    assert title(table(gather(world_size=8, params="7e9"))) == "7e9 parameters on 8 GPUs"
