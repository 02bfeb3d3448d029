"""Conflicts between the config, TrainingArguments and the accelerate config.

The three have settings in common, and programs differ in which one they follow. Each conflict is
reported with both values and both positions before a model is loaded.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsconfig.batch import GLOBAL
from dsconfig.facts import Facts
from dsconfig.facts.naming import named
from dsconfig.facts.training import NAMES_OF
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes.base import AutoHandling, Runtime
from dsconfig.runtimes.replay import Failure, MissingFact, Replay, ReplayStop
from dsconfig.runtimes.transformers import TrainerFill, arguments
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath
from dsconfig.source.plugin_settings import PATH_OF_SETTING, block_of
from dsconfig.source.pointer import ABSENT, copied, value_at

with lazy_imports():
    from dsconfig.facts import dialects, yaml_text

ARGUMENTS, LAUNCH = "training", "launch"
_TITLES = {ARGUMENTS: "TrainingArguments", LAUNCH: "the accelerate config"}


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a conflict: its file (a key of ``origins``), key and value.

    ``product`` describes a value that is calculated from several keys.
    """

    file: str
    key: str
    value: Any
    product: str | None = None


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Conflicting values of the config key ``path``; ``left`` None is the config itself."""

    path: KeyPath
    left: Side | None
    right: Side
    stops_trainer: bool = False
    """Whether transformers compares the two and stops."""


def builds_its_config(program: str) -> bool:
    """Return whether a program builds the ds_config from its own options."""
    return bool(dialects.dialect(program).ds_config)


def effect_of(found: Disagreement, runtimes: Sequence[Runtime]) -> Effect:
    """Return the effect of a disagreement for the programs that may read the config.

    transformers raises an error for the settings it compares. Otherwise the program uses one of the
    values: ``inert`` if the config's, else ``altered``, also if it depends on the program.
    """
    effects = {_effect_for(found, runtime) for runtime in runtimes}
    return effects.pop() if len(effects) == 1 else Effect.ALTERED


def _effect_for(found: Disagreement, runtime: Runtime) -> Effect:
    if found.stops_trainer and runtime.compares_arguments:
        return Effect.REFUSED
    followed = _followed(found, runtime)
    is_of_launcher = found.left is not None and found.right.file == LAUNCH
    is_inert = followed in ("config", None) or (is_of_launcher and followed == ARGUMENTS)
    return Effect.INERT if is_inert else Effect.ALTERED


def help_for(found: Disagreement, original: Mapping[str, Any], runtimes: Sequence[Runtime]) -> str:
    """Return how to resolve a disagreement; suggests "auto" only if every program fills it in."""
    if found.path in _BLOCK_TYPES and found.left is None:
        block, written = found.path[0], value_at(original, found.path)
        return (
            f'delete "{block}" to use {found.right.key} = {_written(found.right.value)}, or delete '
            f"{found.right.key} to use {_written(written)}"
        )
    fills = (runtime.on_auto(found.path, original) is AutoHandling.FILLED for runtime in runtimes)
    if found.left is None and all(fills):
        return 'write "auto" in the config and keep the other value'
    left = found.path.dotted if found.left is None else found.left.key
    return f"set {left} and {found.right.key} to the same value, or delete one of them"


_BLOCK_TYPES = (paths.OPTIMIZER_TYPE, paths.SCHEDULER_TYPE)
"""Keys for which no program fills in "auto": the Trainer creates both if their block is absent."""


def disagreements(original: Mapping[str, Any], facts: Facts) -> Iterator[Disagreement]:
    """Yield conflicts between the config, the arguments and the launch settings."""
    yield from _with_arguments(original, facts)
    yield from _with_launch(original, facts)
    yield from _between_both(original, facts)


DEPENDS = "which value is used depends on the program"


def followed_source(found: Disagreement, runtime: Runtime) -> str:
    """Describe which side of a conflict a program follows."""
    if found.stops_trainer and runtime.compares_arguments:
        return f"{runtime.name} stops"
    followed = _followed(found, runtime)
    if followed is None:
        return f"{runtime.name} uses neither"
    return f"{runtime.name} uses {_TITLES.get(followed, 'the config')}"


def _followed(found: Disagreement, runtime: Runtime) -> str | None:
    """Return the source whose value a program uses: "config", or a file of ``origins``."""
    sources = ("config" if found.left is None else found.left.file, found.right.file)
    return next((source for source in runtime.precedence if source in sources), None)


def describe(
    name: str,
    found: Disagreement,
    original: Mapping[str, Any],
    facts: Facts,
    consequence: str = DEPENDS,
) -> str:
    """Describe a conflict in one sentence; ``name`` is that of the config."""
    if found.left is None:
        left = f"{name} has {_written(value_at(original, found.path))}"
    else:
        left = _shown(facts, found.left)
    right = _shown(facts, found.right)
    return f"{found.path}: {left}, {right}; {consequence}"


def _with_arguments(original: Mapping[str, Any], facts: Facts) -> Iterator[Disagreement]:
    """Compare like the Trainer, but only arguments that are set explicitly."""
    given = facts.arguments
    if not given:
        return
    try:
        fill = TrainerFill(Replay(copied(original)))
        args = arguments(facts if facts.world_size else replace(facts, world_size=1))
        fill.process(args, batch_search=args.values["auto_find_batch_size"])
    except (ReplayStop, MissingFact):
        return
    for mismatch in fill.mismatches.values():
        if mismatch.path == paths.GLOBAL_BATCH and facts.world_size is None:
            continue  # it depends on the number of processes
        names = [name for name in NAMES_OF.get(mismatch.path, ()) if name in given]
        if names:
            product = _PRODUCTS.get(mismatch.path)
            right = Side(ARGUMENTS, names[0], mismatch.wanted, product)
            yield Disagreement(mismatch.path, None, right, stops_trainer=True)
    for dtype, other in (("fp16", "bf16"), ("bf16", "fp16")):
        switch = paths.HALF_PRECISIONS[dtype]
        if given.get(other) is True and value_at(original, switch) is True:
            yield Disagreement(switch, None, Side(ARGUMENTS, other, True))
    for path, argument in zip(_BLOCK_TYPES, ("optim", "lr_scheduler_type"), strict=True):
        written = value_at(original, path)
        if argument in given and isinstance(written, str) and written != "auto":
            yield Disagreement(path, None, Side(ARGUMENTS, argument, given[argument]))


def failed_comparison(
    config: Mapping[str, Any], facts: Facts, runtime: Runtime, *, with_defaults: bool = False
) -> Failure | None:
    """Return the error of the Trainer's comparison that other facts cannot change.

    It compares all keys but the global batch size, if the number of processes is unknown.
    ``with_defaults``: also with the defaults of arguments that are not known.
    """
    if not runtime.compares_arguments:
        return None
    try:
        fill = TrainerFill(Replay(copied(config)), with_defaults=with_defaults)
        args = arguments(facts if facts.world_size else replace(facts, world_size=1))
        fill.process(args, batch_search=args.values["auto_find_batch_size"])
    except ReplayStop as stop:
        return stop.failure
    if facts.world_size is None:
        fill.mismatches.pop(paths.GLOBAL_BATCH, None)
    return fill.disagreement()


def uncompared(config: Mapping[str, Any], facts: Facts, runtime: Runtime, is_named: bool) -> str:
    """Return what the Trainer compares but is not compared for lack of facts; empty if nothing.

    ``is_named``: the user specified the program, so that its default arguments are worth a remark.
    """
    if not runtime.compares_arguments or facts.launch:
        return ""
    if facts.arguments:
        size = config.get(GLOBAL)
        if facts.world_size is None and type(size) is int:
            return f"{GLOBAL} is not compared with TrainingArguments: specify {named('gpus')}"
        return ""
    failure = failed_comparison(config, facts, runtime, with_defaults=True) if is_named else None
    if failure is None or not failure.parts:
        return ""
    keys = ", ".join(map(str, failure.paths))
    differ = "differs" if len(failure.paths) == 1 else "differ"
    return (
        f"{keys} {differ} from the defaults of TrainingArguments: specify {named('training_args')}"
    )


_PRODUCTS = {
    paths.GLOBAL_BATCH: "per_device_train_batch_size x gradient_accumulation_steps x processes",
    paths.OPTIMIZER_PARAMS / "betas": "[adam_beta1, adam_beta2]",
}


def _with_launch(original: Mapping[str, Any], facts: Facts) -> Iterator[Disagreement]:
    settings = block_of(facts.launch)
    for name, path in PATH_OF_SETTING.items():
        written = value_at(original, path)
        if name in settings and written not in (ABSENT, None, "auto", settings[name]):
            side = Side(LAUNCH, f"deepspeed_config.{name}", settings[name])
            yield Disagreement(path, None, side)
    mixed = facts.launch.get("mixed_precision")
    for dtype, switch in paths.HALF_PRECISIONS.items():
        written = value_at(original, switch)
        if mixed is not None and isinstance(written, bool) and written != (mixed == dtype):
            shown = "no" if mixed is False else mixed
            yield Disagreement(switch, None, Side(LAUNCH, "mixed_precision", shown))


def _between_both(original: Mapping[str, Any], facts: Facts) -> Iterator[Disagreement]:
    given = facts.arguments
    mixed = facts.launch.get("mixed_precision")
    for dtype, switch in paths.HALF_PRECISIONS.items():
        # accelerate config writes no: the argument decides then.
        is_set = mixed not in (None, False, "no") and dtype in given
        if is_set and bool(given[dtype]) != (mixed == dtype):
            left = Side(ARGUMENTS, dtype, given[dtype])
            right = Side(LAUNCH, "mixed_precision", "no" if mixed is False else mixed)
            yield Disagreement(switch, left, right)
    settings = block_of(facts.launch)
    for name, argument in _SHARED.items():
        path = PATH_OF_SETTING[name]
        if value_at(original, path) == settings.get(name, ABSENT):
            continue  # the config has it, and is compared with the argument
        if name in settings and argument in given and settings[name] != given[argument]:
            left = Side(ARGUMENTS, argument, given[argument])
            right = Side(LAUNCH, f"deepspeed_config.{name}", settings[name])
            yield Disagreement(path, left, right)


_SHARED = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
}


def _shown(facts: Facts, side: Side) -> str:
    file = facts.origins.get(side.file)
    place = _TITLES[side.file] if file is None else yaml_text.location_of(file, side.key)
    return f"{place} has {side.product or side.key} = {_written(side.value)}"


def launch_help(failure: Failure, name: str) -> str:
    """Return how to resolve keys of the accelerate config that conflict with the named config."""
    keys = [key.rpartition(".")[2] for key in failure.launch_keys]
    return f"delete {', '.join(keys)} here and set {'it' if len(keys) == 1 else 'them'} in {name}"


def _written(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(value, default=str)
