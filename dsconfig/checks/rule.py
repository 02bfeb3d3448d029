"""Types of rules and findings."""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig.docstrings import docstring
from dsconfig.report import Effect, Fix, Range
from dsconfig.runtimes.base import Runtime
from dsconfig.schema.paths import KeyPath
from dsconfig.schema.version import Version

if TYPE_CHECKING:
    from dsconfig.checks.context import Context

AT_INIT = "DeepSpeed fails at engine initialization"
"""Consequence of most mistakes that DeepSpeed detects after reading the config."""
AT_STEP = "DeepSpeed fails at the first step"
REJECTED = "DeepSpeed rejects the config"
"""Consequence of the mistakes that it detects while reading."""


AT_THE_START, AT_THE_END = "start", "end"
"""``parsed_with`` of rules that DeepSpeed checks first, or when it has derived the batch size."""


class Phase(IntEnum):
    """When a program stops at a config, in the order in which DeepSpeed gets there."""

    PARSE = 0
    """While it reads the config; every later phase is after it."""
    ENGINE = 1
    """The first checks of engine initialization, and tensor and expert parallelism."""
    MODEL = 2
    """Casting the model and checking the device."""
    OPTIMIZER = 3
    """Creating the optimizer of the config."""
    ZERO = 4
    """Wrapping the optimizer."""
    SCHEDULER = 5
    DATA = 6
    """Routing and sampling of data."""
    COMPILE = 7
    """``engine.compile()``, if the script calls it."""
    STEP = 8
    """The first steps."""
    CHECKPOINT = 9
    """Loading a checkpoint."""


AppliesTo = Callable[[Runtime], bool]


def every_program(runtime: Runtime) -> bool:
    """Return true: the finding applies to every program."""
    return True


def reaches_deepspeed(runtime: Runtime) -> bool:
    """Return whether DeepSpeed itself ends up reading the config."""
    return runtime.runs_deepspeed


def fills_auto(runtime: Runtime) -> bool:
    """Return whether the program replaces "auto" values before DeepSpeed reads the config."""
    return bool(runtime.auto_fills)


def not_fills_auto(runtime: Runtime) -> bool:
    """Return whether the program leaves "auto" values to DeepSpeed or is dsengine."""
    return not fills_auto(runtime)


def fills_auto_for_script(runtime: Runtime) -> bool:
    """Return whether the program fills in "auto" for a script with its own training loop."""
    return fills_auto(runtime) and not reads_training_arguments(runtime)


def reads_training_arguments(runtime: Runtime) -> bool:
    """Return whether the program compares the config with TrainingArguments."""
    return runtime.compares_arguments


class Finding(NamedTuple):
    """One violation of a rule. None in a field means the value of the rule.

    ``on_key`` selects the range of the key instead of its value.
    """

    path: KeyPath
    message: str
    help: str | None = None
    effect: Effect | None = None
    phase: Phase | None = None
    exception: str | None = None
    names: tuple[KeyPath, ...] = ()
    """Keys that the program's error names, if not ``path``."""
    applies_to: AppliesTo | None = None
    fix: Fix | None = None
    on_key: bool = False
    range: Range | None = None
    """Overrides the range of ``path``."""
    file: str | None = None
    """File of ``path`` and ``range``, if it is not the config."""
    in_other_file: bool = False
    """Whether the location is in another file, which the message names."""
    dsengine_message: str | None = None
    """Message for dsengine, which rejects the value where DeepSpeed continues."""


class Example(NamedTuple):
    """The text of an example config, the program that reads it, and facts by argument."""

    config: str
    name: str = "ds.json"
    command: str = "validate"
    runtime: str | None = "deepspeed"
    version: str | None = None
    model_config: Mapping[str, Any] | None = None
    """Content of the model's config.json."""
    facts: Mapping[str, Any] = {}

    def with_facts(self, **facts: Any) -> "Example":
        """Return the example with other facts; None removes one."""
        both = {**self.facts, **facts}
        known = {name: fact for name, fact in both.items() if fact is not None}
        return self._replace(facts=known)


Check = Callable[["Context"], Iterable[Finding]]


class Stop(NamedTuple):
    """When a program stops at a finding with the effect ``refused``, and the exception.

    ``parsed_with``: top-level key with which DeepSpeed checks it; empty: that of the finding.
    ``exception``: empty if it depends on the value.
    """

    phase: Phase
    parsed_with: str = ""
    exception: str = ""


def stop_of(text: str) -> Stop:
    """Return the stop of ``zero ValueError``, ``bf16 AssertionError`` or only one of the two."""
    when, _, exception = text.partition(" ")
    if not when.islower():
        when, exception = "", when
    if when.upper() in Phase.__members__:
        return Stop(Phase[when.upper()], "", exception)
    return Stop(Phase.PARSE, when, exception)


def release_range(text: str) -> tuple[Version, Version]:
    """Return the first and the last release of ``0.6.0 to 0.6.1``; both may be left out."""
    first, _, last = text.partition("to")
    return (
        Version.parse(first) if first.strip() else Version(0, 0, 0),
        Version.parse(last) if last.strip() else Version(10**6, 0, 0),
    )


class Rule(NamedTuple):
    """A named, documented check, run when one of ``triggers`` is present (or when it has none)."""

    code: str
    name: str
    effect: Effect
    """Effect of its bad example and of most findings."""
    also: tuple[Effect, ...]
    """Other effects that its findings may have."""
    check: Check
    triggers: frozenset[str]
    stop: Stop
    releases: tuple[Version, Version]
    """The first and the last release in which it fires."""
    applies_to: AppliesTo
    on_templates: bool
    """Whether the rule also runs on templates, because it reads keys and not values."""
    last: bool
    """Whether the rule runs after all others, to report only what they do not."""
    from_source: str
    """Why no run has shown its refusal, which is read in the source; empty if one has."""

    @property
    def late(self) -> bool:
        """Whether the program stops only after it has read the config."""
        return self.stop.phase > Phase.PARSE

    @property
    def title(self) -> str:
        """The problem in one line, the heading of its page."""
        return self.doc.partition("\n\n")[0].replace("\n", " ")

    @property
    def explanation(self) -> str:
        """Paragraphs of its page below the heading; may be empty."""
        return self.doc.partition("\n\n")[2]

    @property
    def doc(self) -> str:
        """Text of its page, without the examples."""
        return _LABEL.split(self._docstring, maxsplit=1)[0].strip()

    @property
    def bad(self) -> Example:
        return examples_in(self._docstring)["bad"]

    @property
    def good(self) -> Example:
        return examples_in(self._docstring)["good"]

    @property
    def _docstring(self) -> str:
        return docstring(self.check)


_LABEL = re.compile(r"^(with|bad|good):", re.MULTILINE)


def examples_in(docstring: str) -> dict[str, Example]:
    """Return the examples at the end of a rule's docstring, by label.

    ``bad:`` and ``good:`` precede a config. Indented continuation lines are joined by a space, or
    kept as separate lines if the config starts on its own line. ``with:`` sets other fields of the
    examples that follow, as keyword arguments.
    """
    examples: dict[str, Example] = {}
    fields: dict[str, Any] = {}
    _, *parts = _LABEL.split(docstring)
    for label, text in zip(parts[::2], parts[1::2], strict=True):
        if label == "with":
            call = ast.parse(f"_({text.strip()})", mode="eval").body
            assert isinstance(call, ast.Call), text
            given = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
            fields = {name: given.pop(name) for name in Example._fields if name in given}
            fields["facts"] = given
        else:
            lines = text.split("\n")
            first = lines[0].strip()
            joined = " ".join(line.strip() for line in lines).strip()
            config = joined if first else inspect.cleandoc(text) + "\n"
            examples[label] = Example(config, **fields)
    return examples
