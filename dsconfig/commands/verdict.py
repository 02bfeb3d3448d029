"""The answer before the detail: whether it fits, by how much, and what to do."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig.commands.text_table import paragraph
from dsconfig.cost.search import TO_SPARE, host_or_disk_shortfall, known_devices
from dsconfig.report.sizes import GIB, size
from dsconfig.runtimes.base import format_instructions

if TYPE_CHECKING:
    from dsconfig.cost.assumptions import Assumption
    from dsconfig.cost.estimate import Option
    from dsconfig.cost.remedies import Change
    from dsconfig.facts import Facts
    from dsconfig.runtimes.base import Runtime


def verdict(option: "Option", facts: "Facts", precision: str = "") -> str:
    """One sentence on a priced config: ``Does not fit: 25.0 GiB over on each A100, in forward.``

    Without a card the smallest is named that computes in ``precision``.
    """
    training = facts.training
    (card, *_) = option.fits or (None,)
    return sentence(
        Need(
            option.device.needed_bytes,
            option.device.peak_phase,
            activations=training is not None and training.sequence_length is not None,
            short=host_or_disk_shortfall(option.host, option.nvme, facts),
            least=option.device.least_needed_bytes,
            precision=precision,
        ),
        (card.device, card.memory_bytes) if card else None,
    )


class Need(NamedTuple):
    """What one GPU has to hold (bytes) and when; whether ``activations`` are among it.

    ``short``: what main memory or the disk lacks, in words.
    ``least``: with the fewest fragments that are known; None where they are not counted.
    """

    bytes: int
    phase: str
    activations: bool = True
    short: str = ""
    least: int | None = None
    precision: str = ""


def sentence(need: Need, card: tuple[str, int] | None) -> str:
    """Whether that fits a card, given as (name, usable bytes)."""
    when = f"in {need.phase}" if need.activations else f"in {need.phase}, before activations"
    if card is None:
        least = "Needs" if need.activations else "Needs at least"
        smallest = _smallest_card(need) if need.activations else "; give --seq-len"
        short = f"Does not fit: {need.short}. " if need.short else ""
        return f"{short}{least} {size(need.bytes)} on each GPU, {when}{smallest}."
    name, memory = card
    left, short = memory - need.bytes, need.short
    spare = memory - (need.bytes if need.least is None else need.least)
    if left < 0 <= spare and not short:
        return (
            f"May not fit: {size(-left)} over on each {name} with as many fragments as usual, "
            f"{size(spare)} left with the fewest, {when}."
        )
    if left < 0:
        also = f"; {short}, too" if short else ""
        return f"Does not fit: {size(-left)} over on each {name}, {when}{also}."
    if short:
        return f"Does not fit: {short}."
    share = f"{size(left)} ({left / memory:.0%}) left on each {name}"
    if not need.activations:
        return f"Fits only before activations: {share}. Give --seq-len: activations decide."
    word = "Fits, but tightly" if left < TO_SPARE * memory else "Fits"
    return f"{word}: {share}, at most in {need.phase}."


def _smallest_card(need: Need) -> str:
    """The smallest card of the catalogue that holds it, in words."""
    cards = known_devices(need.precision)
    holding = [(memory, name) for name, memory in cards if memory >= need.bytes]
    if not holding:
        return "; no known card holds that"
    memory, name = min(holding)
    return f"; from {math.ceil(memory / GIB)} GiB ({name}) on"


def assumption_line(other: "Assumption") -> str:
    """``With --loss fused it fits: 36.2 GiB.``"""
    would = "it fits" if other.fits else "it does not fit"
    return f"With {other.flag} {would}: {size(other.option.device.needed_bytes)}."


def assumption_data(others: "tuple[Assumption, ...]") -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "flag": other.flag,
            "fits": other.fits,
            "needed_bytes": other.option.device.needed_bytes,
        }
        for other in others
    ]


def remedy_lines(
    changes: "tuple[Change, ...]", runtime: "Runtime", written: Mapping[str, Any]
) -> list[str]:
    """Each change with what it brings and what a person writes for it, wrapped."""
    if not changes:
        return ["Nothing smaller is known: more or larger GPUs, or a smaller model."]
    fits = changes[0].fits
    lines = ["What makes it fit:" if fits else "Nothing alone makes it fit; what comes nearest:"]
    for change in changes:
        steps = format_instructions(runtime.instructions(change.edits, written))
        brings = f"{size(change.option.device.needed_bytes)}, {change.slowdown:.2f} times the step"
        lines.append(paragraph(f"{change.what} ({brings}): {steps}", indent="    ", first="  "))
    return lines


def remedy_data(
    changes: "tuple[Change, ...]", runtime: "Runtime", written: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "what": change.what,
            "fits": change.fits,
            "visible_bytes": change.option.device.visible_bytes,
            "needed_bytes": change.option.device.needed_bytes,
            "slowdown": change.slowdown,
            "edits": change.edits,
            "steps": [step._asdict() for step in runtime.instructions(change.edits, written)],
        }
        for change in changes
    ]
