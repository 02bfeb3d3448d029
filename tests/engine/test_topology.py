"""Mechanisms on four ranks of which two have the same part of the model."""

import pytest

from training.ranks import SharedRanks

pytestmark = pytest.mark.engine
JOBS = "training.topology_jobs"


def test_ranks_of_a_part_count_and_report_among_themselves(ranks_of: SharedRanks) -> None:
    ranks_of(4).run(f"{JOBS}:groups_of_a_part")


def test_gathered_losses_have_gradients_in_every_group(ranks_of: SharedRanks) -> None:
    """torch's own gradient raises in the second pair, whose ranks are 2 and 3."""
    weights = [(1 + 2) * 1, (1 + 2) * 2, (3 + 4) * 1, (3 + 4) * 2]
    assert ranks_of(4).run(f"{JOBS}:gradient_of_gathered_losses") == weights
