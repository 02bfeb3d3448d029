"""Components have distinct, stable colors."""

from dsconfig.cost.colors import colors_of

NAMES = (
    "activations",
    "logits and loss",
    "optimizer state",
    "gradients",
    "weights",
    "reduce bucket",
)


def test_every_component_has_its_own_color() -> None:
    colors = colors_of(NAMES)
    assert len(set(colors.values())) == len(NAMES)
    assert all(len(color) == 7 and color.startswith("#") for color in colors.values())


def test_color_does_not_depend_on_order() -> None:
    assert colors_of(NAMES) == colors_of(reversed(NAMES))
