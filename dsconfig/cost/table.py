"""The table over stages and offload choices for a model that has no config yet."""

from functools import lru_cache

from dsconfig.cost.answer import inputs_of, price, with_fits
from dsconfig.cost.choices import USUAL, usual_config
from dsconfig.cost.estimate import Estimate
from dsconfig.facts.facts import Facts
from dsconfig.runtimes.base import Runtime


def table(facts: Facts, *, runtime: str | Runtime = "dsengine") -> Estimate:
    """Every usual choice priced, each judged against the card given, or all known cards.

    Raises ValueError when the facts name no model or no number of devices.
    """
    options = [price(usual_config(facts, choice), facts, runtime=runtime) for choice in USUAL]
    if facts.device is None:
        options = [with_fits(option, list(known_cards())) for option in options]
    inputs = inputs_of(usual_config(facts, USUAL[-1]), facts, runtime)
    return Estimate(options=tuple(options), inputs=inputs)


@lru_cache(maxsize=1)
def known_cards() -> tuple[tuple[str, int], ...]:
    """(name, usable bytes) of the catalogue, smallest first."""
    from dsconfig.facts import catalogues

    cards = [(card["name"], card["memory_bytes_usable"]) for card in catalogues.gpus()]
    return tuple(sorted(cards, key=lambda card: card[1]))
