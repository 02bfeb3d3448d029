"""Mechanisms on four ranks of which two have the same part of the model."""

import pytest

from dsconfig import Mesh
from training.ranks import SharedRanks

pytestmark = pytest.mark.engine
JOBS = "training.topology_jobs"


@pytest.mark.parametrize(
    ("stage", "mesh"),
    [
        (0, Mesh(replicate=2, tensor=2)),
        (1, Mesh(shard=2, tensor=2)),
        (2, Mesh(replicate=2, tensor=2)),
        (3, Mesh(shard=2, tensor=2)),
    ],
)
def test_parts_keep_their_weights_and_gradients(
    ranks_of: SharedRanks, stage: int, mesh: Mesh
) -> None:
    ranks_of(4).run(f"{JOBS}:reduced_within_a_part", stage=stage, mesh=mesh)


def test_ranks_of_a_part_count_and_report_among_themselves(ranks_of: SharedRanks) -> None:
    ranks_of(4).run(f"{JOBS}:groups_of_a_part")


def test_gathered_parameters_are_written_within_a_part(ranks_of: SharedRanks) -> None:
    written = ranks_of(4).run(f"{JOBS}:written_within_a_part")
    assert written == [[0.0] * 3, [1.0] * 3, [0.0] * 3, [1.0] * 3]


def test_gathered_losses_have_gradients_in_every_group(ranks_of: SharedRanks) -> None:
    """torch's own gradient raises in the second pair, whose ranks are 2 and 3."""
    weights = [(1 + 2) * 1, (1 + 2) * 2, (3 + 4) * 1, (3 + 4) * 2]
    assert ranks_of(4).run(f"{JOBS}:gradient_of_gathered_losses") == weights
