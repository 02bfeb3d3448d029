"""Memory of building a model under zero.Init."""

from unittest import mock

import torch
from dsengine.zero import Init
from torch import nn

import waiting
from dsengine.observation.memory import LiveBytes
from dsengine.sharding.zero import init
from dsengine.tiers import memory

WIDTH = 64
TRIM_BYTES = 4 * WIDTH * WIDTH


def measured() -> dict[str, int]:
    """Return peak and final bytes of tensors, those of the full model and its largest parameter,
    and how many times the heap was trimmed.
    """
    torch.manual_seed(0)
    live = LiveBytes(torch.device("cpu"), existing=False)
    with (
        mock.patch.object(init, "TRIM_BYTES", TRIM_BYTES),
        mock.patch.object(memory, "trim_heap") as trim,
        live.measure("build"),
    ):
        with Init():
            model = nn.Sequential(
                *[nn.Linear(WIDTH, WIDTH) for _ in range(96)], nn.Embedding(8 * WIDTH, WIDTH)
            )
        sizes = [4 * parameter.numel() for parameter in model.parameters()]

        def holds_shards_only() -> bool:
            live.enter("build")
            return live.at_exit["build"] <= sum(sizes) // 2

        # A thread of gloo may hold the last tensor it has sent for a moment longer.
        waiting.until("the parameters are freed", holds_shards_only, seconds=20)
    return {
        "peak": live.peaks["build"],
        "left": live.at_exit["build"],
        "model": sum(sizes),
        "largest": max(sizes),
        "smallest": min(sizes),
        "trims": trim.call_count,
    }
