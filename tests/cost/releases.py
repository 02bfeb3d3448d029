"""Tolerance of an estimate, by the release of torch."""

import torch

TOLERANCE = 0.02
ABOVE = TOLERANCE if torch.__version__ < "2.15" else 0.10
"""Torch 2.15 frees a unit's gradients once they are copied for the reduction: the estimate, made
for earlier releases, is too large by about one unit."""


def agrees(estimated: float, measured: float, slack: int = 0) -> bool:
    """Return whether they agree; ``slack``: bytes by which small amounts may differ."""
    return measured * (1 - TOLERANCE) - slack <= estimated <= measured * (1 + ABOVE) + slack
