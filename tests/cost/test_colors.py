"""Components have distinct, stable colors."""

from colorsys import rgb_to_hls

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


def test_each_kind_of_component_has_a_hue() -> None:
    kinds = {"activations": "logits", "optimizer state": "master weights", "gradients": "overflow"}
    kinds |= {"gathered weights": "parameters", "reduce bucket": "scratch", "other": "something"}
    colors = colors_of([*kinds, *kinds.values()])

    def hue(name: str) -> int:
        red, green, blue = (int(colors[name][at : at + 2], 16) / 255 for at in (1, 3, 5))
        return round(20 * rgb_to_hls(red, green, blue)[0])

    assert [hue(one) for one in kinds] == [hue(other) for other in kinds.values()]
    assert len({hue(one) for one in kinds}) == len(kinds)
