"""Sharding units: which modules are gathered, reduced and freed together.

Pure: a model tree and a cap in, units out. Used by the engine, the estimator and the plan,
so that all three speak of the same groups.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Modules handled as one. ``elements`` counts parameters, shared storage once."""

    modules: tuple[str, ...]
    elements: int
    trainable_elements: int
    parameters: tuple[str, ...]
    """Full names of the parameters it owns (a tied weight belongs to one unit only)."""
