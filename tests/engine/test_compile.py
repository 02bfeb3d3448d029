"""A compiled model trains as before, and each block is in one graph."""

import pytest

from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
BLOCKS, LAYERS = 3, 2
"""Linear layers are counted; each block has two."""


@sweep(1, stage=[0, 1, 2, 3], precision=["fp32", "bf16"])
def test_no_graph_ends_inside_a_block(ranks: Ranks, stage: int, precision: str) -> None:
    settings = config(stage, bf16={"enabled": precision == "bf16"})
    job = "training.compile_jobs:losses_and_graphs"
    for found in ranks.run(job, config=settings, blocks=BLOCKS):
        assert found["count"] == pytest.approx(found["none"], rel=1e-6)
        blocks = [layers for layers in found["graphs"] if layers]
        assert blocks and all(layers % LAYERS == 0 for layers in blocks), found["graphs"]
        if stage == 0:
            assert sum(blocks) == BLOCKS * LAYERS, "DistributedDataParallel breaks no graph"
