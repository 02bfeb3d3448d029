"""Peak memory of building a model under zero.Init."""

from pathlib import Path

import torch
from dsengine.zero import Init
from torch import nn

WIDTH = 1024


def peak_resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def measured() -> dict[str, int]:
    """Return bytes of the memory rise, of the full model, and of its largest parameter."""
    torch.manual_seed(0)
    with Init():
        nn.Linear(64, 64)  # the first collective sets up connections
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_resident_bytes()
    with Init():
        model = nn.Sequential(
            nn.Embedding(8 * WIDTH, WIDTH), *[nn.Linear(WIDTH, WIDTH) for _ in range(96)]
        )
    rise = peak_resident_bytes() - before
    elements = sum(p.numel() for p in model.parameters())
    largest = max(p.numel() for p in model.parameters())
    return {"rise": rise, "model": 4 * elements, "largest": 4 * largest}
