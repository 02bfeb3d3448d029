"""The config, TrainingArguments and the accelerate config against each other.

Each of the three can say the same thing, and different programs believe different ones; so
every disagreement is told, with both values and both places, before any model is loaded.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsconfig.facts import Facts
from dsconfig.facts.training import NAMES_OF
from dsconfig.lazy_imports import lazy_imports
from dsconfig.resolver.draft import Draft
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.behavior.replay import MissingFact, Replay, ReplayStop
from dsconfig.runtimes.behavior.trainer import TrainerFill, arguments
from dsconfig.source.plugin_settings import PATH_OF_SETTING, block_of
from dsconfig.source.pointer import ABSENT, copied, value_at

with lazy_imports():
    from dsconfig.facts import yaml_text

ARGUMENTS, LAUNCH = "training", "launch"
_TITLES = {ARGUMENTS: "TrainingArguments", LAUNCH: "the accelerate config"}


@dataclass(frozen=True, slots=True)
class Side:
    """One of two that disagree: where it stands (a file of ``origins``), and what it says."""

    file: str
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Disagreement:
    """``path`` is the key of the config both are about; ``left`` None is the config itself."""

    path: str
    left: Side | None
    right: Side
    stops_trainer: bool = False
    """Whether transformers compares the two, and stops."""


def check(draft: Draft, original: Mapping[str, Any]) -> None:
    """Report every disagreement that is not reported already."""
    facts = draft.facts
    told = {found.pointer for found in draft.findings if found.code == "DSC760"}
    for each in disagreements(original, facts):
        if draft.document.is_generated and each.left is None and each.right.file == LAUNCH:
            continue  # the config was made from there
        if f"/{each.path.replace('.', '/')}" not in told:
            followed = followed_source(each, draft.runtime)
            message = said(draft.document.name, each, original, facts, followed)
            draft.report("DSC758", each.path, message, _ONE_PLACE)


_ONE_PLACE = 'say it in one place: write "auto" in the config and keep the value in the other file'


def disagreements(original: Mapping[str, Any], facts: Facts) -> Iterator[Disagreement]:
    """Where the config, the arguments and the launch settings say different things."""
    yield from _with_arguments(original, facts)
    yield from _with_launch(original, facts)
    yield from _between_both(facts)


DEPENDS = "which of them holds depends on the program"


def followed_source(found: Disagreement, runtime: Runtime) -> str:
    """Whom a program follows, in words."""
    sides = ["config" if found.left is None else found.left.file, found.right.file]
    followed = next((each for each in runtime.precedence if each in sides), None)
    if followed is None:
        return f"{runtime.name} reads neither"
    return f"{runtime.name} follows {_TITLES.get(followed, 'the config')}"


def said(
    name: str,
    found: Disagreement,
    original: Mapping[str, Any],
    facts: Facts,
    consequence: str = DEPENDS,
) -> str:
    """A disagreement in one sentence; ``name`` is that of the config."""
    if found.left is None:
        left = f"{name} says {_written(value_at(original, found.path))}"
    else:
        left = _shown(facts, found.left)
    right = _shown(facts, found.right)
    return f"{found.path}: {left}, {right}; {consequence}"


def _with_arguments(original: Mapping[str, Any], facts: Facts) -> Iterator[Disagreement]:
    """As the Trainer compares them, but only for arguments that were really given."""
    given = facts.arguments
    if not given:
        return
    try:
        fill = TrainerFill(Replay(copied(original)))
        fill.process(arguments(facts))
    except (ReplayStop, MissingFact):
        return
    for mismatch in fill.mismatches.values():
        names = [name for name in NAMES_OF.get(mismatch.path, ()) if name in given]
        if names:
            right = Side(ARGUMENTS, names[0], mismatch.wanted)
            yield Disagreement(mismatch.path, None, right, stops_trainer=True)
    for dtype, other in (("fp16", "bf16"), ("bf16", "fp16")):
        if given.get(other) is True and value_at(original, f"{dtype}.enabled") is True:
            yield Disagreement(f"{dtype}.enabled", None, Side(ARGUMENTS, other, True))
    for block, argument in (("optimizer", "optim"), ("scheduler", "lr_scheduler_type")):
        written = value_at(original, f"{block}.type")
        if argument in given and isinstance(written, str) and written != "auto":
            yield Disagreement(f"{block}.type", None, Side(ARGUMENTS, argument, given[argument]))


def _with_launch(original: Mapping[str, Any], facts: Facts) -> Iterator[Disagreement]:
    settings = block_of(facts.launch)
    for name, path in PATH_OF_SETTING.items():
        written = value_at(original, path)
        if name in settings and written not in (ABSENT, None, "auto", settings[name]):
            side = Side(LAUNCH, f"deepspeed_config.{name}", settings[name])
            yield Disagreement(path, None, side)
    mixed = facts.launch.get("mixed_precision")
    for dtype in ("fp16", "bf16"):
        written = value_at(original, f"{dtype}.enabled")
        if mixed is not None and isinstance(written, bool) and written != (mixed == dtype):
            shown = "no" if mixed is False else mixed
            yield Disagreement(f"{dtype}.enabled", None, Side(LAUNCH, "mixed_precision", shown))


def _between_both(facts: Facts) -> Iterator[Disagreement]:
    given = facts.arguments
    mixed = facts.launch.get("mixed_precision")
    for dtype in ("fp16", "bf16"):
        if mixed is not None and dtype in given and bool(given[dtype]) != (mixed == dtype):
            left = Side(ARGUMENTS, dtype, given[dtype])
            right = Side(LAUNCH, "mixed_precision", "no" if mixed is False else mixed)
            yield Disagreement(f"{dtype}.enabled", left, right)
    settings = block_of(facts.launch)
    for name, argument in _SHARED.items():
        if name in settings and argument in given and settings[name] != given[argument]:
            left = Side(ARGUMENTS, argument, given[argument])
            right = Side(LAUNCH, f"deepspeed_config.{name}", settings[name])
            yield Disagreement(PATH_OF_SETTING[name], left, right)


_SHARED = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
}


def _shown(facts: Facts, side: Side) -> str:
    file = facts.origins.get(side.file)
    place = _TITLES[side.file] if file is None else yaml_text.location_of(file, side.key)
    return f"{place} says {side.key} = {_written(side.value)}"


def _written(value: Any) -> str:
    """As a config spells it."""
    return json.dumps(value, default=str)
