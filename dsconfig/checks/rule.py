"""What a rule is, and what it finds."""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig.report import Effect, Fix, Range
from dsconfig.runtimes.base import Runtime

if TYPE_CHECKING:
    from dsconfig.checks.context import Context

Path = tuple[str, ...]
AT_INIT = "DeepSpeed stops when the engine is built"
"""What most refusals come to that are late."""
AppliesTo = Callable[[Runtime], bool]


def every_program(runtime: Runtime) -> bool:
    """The fault is in the file, whoever reads it."""
    return True


def reaches_deepspeed(runtime: Runtime) -> bool:
    """The fault shows wherever DeepSpeed has the last word."""
    return runtime.runs_deepspeed


def fills_auto(runtime: Runtime) -> bool:
    """The fault shows where a program puts values into the file and hands it on."""
    return bool(runtime.auto_fills)


def fills_auto_for_script(runtime: Runtime) -> bool:
    """The fault shows where a program fills the file in for a script with a loop of its own."""
    return fills_auto(runtime) and not reads_training_arguments(runtime)


def reads_training_arguments(runtime: Runtime) -> bool:
    """The fault shows where a program reads TrainingArguments beside the file."""
    return runtime.compares_arguments


class Finding(NamedTuple):
    """One place where a rule does not hold. None means: as the rule says.

    ``on_key`` points at the key, not at its value.
    """

    path: Path
    message: str
    help: str | None = None
    effect: Effect | None = None
    late: bool | None = None
    applies_to: AppliesTo | None = None
    fix: Fix | None = None
    on_key: bool = False
    range: Range | None = None
    """Where the place is not that of ``path``."""
    in_other_file: bool = False
    """Whether the place is in another file, which the message names."""
    dsengine_message: str | None = None
    """What is said to who asks for dsengine alone, which stops where DeepSpeed goes on."""


class Example(NamedTuple):
    """A config (its text) with the world it is judged in."""

    config: str
    name: str = "ds.json"
    runtime: str | None = "deepspeed"
    version: str | None = None
    world_size: int | None = None
    device: str | None = None
    model: str | None = None
    host_memory: str | None = None
    client_optimizer: str | None = None
    training_args: Mapping[str, Any] | None = None
    releases: Mapping[str, str] | None = None


Check = Callable[["Context"], Iterable[Finding]]


class Rule(NamedTuple):
    """A named, documented check. ``triggers`` lists top-level keys one of which must be present."""

    code: str
    name: str
    effect: Effect
    """What its bad example leads to, and most of its findings."""
    also: tuple[Effect, ...]
    """What a finding leads to where it says so itself."""
    check: Check
    triggers: frozenset[str]
    late: bool
    applies_to: AppliesTo
    on_templates: bool
    """True where the rule looks at keys only, so that placeholders do not mislead it."""
    last: bool
    """True where it tells what no other rule does, and so is asked behind them."""

    @property
    def doc(self) -> str:
        """What its page says, without the examples."""
        return _LABEL.split(self._docstring, maxsplit=1)[0].strip()

    @property
    def bad(self) -> Example:
        return examples_in(self._docstring)["bad"]

    @property
    def good(self) -> Example:
        return examples_in(self._docstring)["good"]

    @property
    def _docstring(self) -> str:
        return inspect.getdoc(self.check) or ""


_LABEL = re.compile(r"^(with|bad|good):", re.MULTILINE)


def examples_in(docstring: str) -> dict[str, Example]:
    """The examples at the end of a rule's docstring, by label.

    ``bad:`` and ``good:`` stand before a config; lines that go on are indented, and joined by a
    blank, or kept as the lines of a file where the config begins on a line of its own.
    ``with:`` sets other fields of the examples behind it, as keyword arguments.
    """
    found: dict[str, Example] = {}
    world: dict[str, Any] = {}
    _, *parts = _LABEL.split(docstring)
    for label, text in zip(parts[::2], parts[1::2], strict=True):
        if label == "with":
            call = ast.parse(f"_({text.strip()})", mode="eval").body
            assert isinstance(call, ast.Call), text
            world = {each.arg or "": ast.literal_eval(each.value) for each in call.keywords}
        else:
            lines = text.split("\n")
            first = lines[0].strip()
            joined = " ".join(line.strip() for line in lines).strip()
            config = joined if first else inspect.cleandoc(text) + "\n"
            found[label] = Example(config, **world)
    return found
