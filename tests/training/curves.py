"""Losses and norms of training runs, compared step by step."""

from collections.abc import Iterable, Sequence

import pytest

Curve = Sequence[tuple[float, float]]
"""Loss and gradient norm of each step."""


def assert_equal(curves: Iterable[Curve], expected: Curve, *, clip: float) -> None:
    """Compare the curve of every rank with that of one process, to 1e-5, while clipping."""
    assert min(norm for _, norm in expected) > clip, "clipping is active"
    for curve in curves:
        losses, norms = zip(*curve, strict=True)
        assert losses == pytest.approx([loss for loss, _ in expected], rel=1e-5)
        assert norms == pytest.approx([norm for _, norm in expected], rel=1e-5)
