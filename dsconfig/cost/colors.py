"""One color per memory component, shared by the HTML page, the plots and the terminal."""

from collections.abc import Iterable
from colorsys import hls_to_rgb
from typing import NamedTuple


class _Family(NamedTuple):
    """Components of one purpose: a hue and saturation from 0 to 1, and words in their names."""

    hue: float
    saturation: float
    words: tuple[str, ...]


_FAMILIES = (
    _Family(0.77, 0.45, ("activation", "logits", "embedding", "checkpoint", "working set")),
    _Family(0.38, 0.45, ("optimizer", "master", "momentum", "muon", "moments", "states")),
    _Family(0.08, 0.75, ("gradient", "overflow")),
    _Family(0.60, 0.55, ("gathered", "weight", "parameter", "unit", "shard", "model")),
    _Family(
        0.50, 0.50, ("bucket", "gather", "reduce", "broadcast", "staging", "buffer", "scratch")
    ),
    _Family(0.97, 0.45, ()),
)
"""Tried in this order; the last takes every other name."""
DARKEST, LIGHTEST = 0.36, 0.76
"""Lightness of the shades of a family: visible on a white and on a black background."""


def colors_of(names: Iterable[str]) -> dict[str, str]:
    """Return a distinct ``#rrggbb`` color for each name, with one hue per kind of component."""
    families: dict[_Family, list[str]] = {}
    for name in sorted(set(names)):
        families.setdefault(_family_of(name), []).append(name)
    return {
        name: _shade(family, index, len(members))
        for family, members in families.items()
        for index, name in enumerate(members)
    }


def _family_of(name: str) -> _Family:
    lowered = name.lower()
    return next(
        (family for family in _FAMILIES if any(word in lowered for word in family.words)),
        _FAMILIES[-1],
    )


def _shade(family: _Family, index: int, count: int) -> str:
    position = index / (count - 1) if count > 1 else 0.4
    lightness = DARKEST + position * (LIGHTEST - DARKEST)
    red, green, blue = hls_to_rgb(family.hue, lightness, family.saturation)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in (red, green, blue))
