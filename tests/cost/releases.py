"""Tolerance of an estimate, by the release of torch."""

import torch

TOLERANCE = 0.02
ABOVE = TOLERANCE if torch.__version__ < "2.15" else 0.10
"""Torch 2.15 lets go of a unit's gradients once they are copied for the reduction: the estimate,
which is that of the releases before it, is above what is held by about one unit."""


def agrees(estimated: float, held: float, slack: int = 0) -> bool:
    """``slack``: bytes by which small amounts may differ."""
    return held * (1 - TOLERANCE) - slack <= estimated <= held * (1 + ABOVE) + slack
