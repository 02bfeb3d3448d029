"""Who runs a file: what the user says, else what the file and its neighbours show.

[Note: inference] Most people who hold a ds_config run it through the Trainer or accelerate, and few
say so. A file tells by an "auto" at which DeepSpeed by itself would stop: somebody fills it in
first. TrainingArguments and accelerate's YAML tell when they are given, when they hold the config,
or when they lie beside it and name it; so does a release of either (--with). The library infers
nothing: there a program says who asks.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig.batch import KEYS, Triple
from dsconfig.commands.errors import usage
from dsconfig.lazy_imports import lazy_imports
from dsconfig.mesh import MOST_RANKS
from dsconfig.report.report import FileTarget
from dsconfig.runtimes.base import AUTO, AutoHandling, runtime_of
from dsconfig.schema.markers import integral
from dsconfig.source.pointer import is_block, value_at

with lazy_imports():
    from dsconfig.checks.rule import fills_auto
    from dsconfig.commands import options
    from dsconfig.commands.validation import settings
    from dsconfig.facts import embedded_facts
    from dsconfig.schema import version as versions

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.source import Document

EVERY = "all"
"""In the place of a runtime: the file is judged for each of them."""
TRAINER, ACCELERATE, ALONE = "transformers", "accelerate", "deepspeed"
BY_DEFAULT = "by default"
NEWEST_KNOWN, INSTALLED = "newest known", "installed here"
UNASKED = (NEWEST_KNOWN, INSTALLED)
"""Where a release is from that the user has not named."""
YAMLS = (".yaml", ".yml")
MOST_NEIGHBOURS, LARGEST_NEIGHBOUR = 40, 64 * 1024
"""Files beside a config that are looked into, and bytes of each."""


class Program(NamedTuple):
    """The program that is taken to run a file; ``found`` is empty where the user named it."""

    runtime: "Runtime"
    found: str = ""
    release_from: str = ""
    beside: tuple[str, ...] = ()
    """Programs and releases that were given, of which known faults are told."""

    @property
    def described(self) -> str:
        """``transformers 5.23 with DeepSpeed 0.19.8, newest known``."""
        from_where = self.release_from if self.runtime.runs_deepspeed else ""
        faults = f"and the known faults of {' and '.join(self.beside)}" if self.beside else ""
        return ", ".join(part for part in (self.runtime.described, from_where, faults) if part)

    @property
    def sentence(self) -> str:
        """What the first line says."""
        how = f" ({self.found}); --runtime says otherwise" if self.found else ""
        return f"for {self.described}{how}"

    @property
    def data(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "runtime": self.runtime.name,
            "release": str(self.runtime.version),
            "inferred_from": self.found or None,
        }

    def target(self, config: object, facts: "Facts | None") -> FileTarget:
        """The same as plain data, with what a ``config`` says of its run: the "auto" that the
        program fills, and the ranks where the user gave no number of them.
        """
        return FileTarget(
            runtime=self.runtime.name,
            release=str(self.runtime.version),
            inferred_from=self.found or None,
            described=self.sentence,
            fills=len(filled_by(self.runtime, config)),
            ranks=ranks_fixed(config, facts),
        )


def program(
    asked: str | None,
    version: str | None,
    *,
    document: "Document | None" = None,
    source: str = "",
    facts: "Facts | None" = None,
    project: str = "",
) -> Program:
    """Who runs a file, at which release of DeepSpeed.

    ``asked`` is the name that the user or the ``project`` file gave; ``source`` what the file was
    called on the command line, which also says whose project it lies in. Raises UsageError for a
    name or a release that is unknown.
    """
    if not project:
        told = settings.settings_for(source or ".")
        version = version or told.version
        asked, project = (asked, "") if asked else (told.runtime, told.file)
    release = options.release(version)
    if version is not None:
        newer = release > versions.NEWEST
        from_where = f"judged as {versions.NEWEST}, the newest known" if newer else ""
    elif release >= versions.NEWEST:
        from_where = NEWEST_KNOWN
    else:
        from_where = INSTALLED
    if asked is not None:
        found = project and f"runtime of {project}"
    else:
        asked, found = _told(document, source, facts)
    with usage("--runtime"):
        runtime = runtime_of(asked, release)
    # DeepSpeed by itself has none of their faults.
    given = facts.releases.items() if facts is not None and fills_auto(runtime) else ()
    beside = (f"{name} {each}" for name, each in given if name in (TRAINER, ACCELERATE))
    return Program(runtime, found, from_where, tuple(beside))


def _told(document: "Document | None", source: str, facts: "Facts | None") -> tuple[str, str]:
    """Name and reason, by what was given, what the file is, and what lies beside it."""
    given = facts.origins.keys() if facts is not None else ()
    if "training" in given:
        return TRAINER, "by TrainingArguments"
    if "launch" in given:
        return ACCELERATE, "by the accelerate config"
    if document is None:
        return (source and _neighbour(Path(source))) or (ALONE, BY_DEFAULT)
    holder, form = "", "YAML" if source.endswith(YAMLS) else "JSON"
    if document.container:
        holder = ACCELERATE if embedded_facts.is_accelerate_config(document.container) else TRAINER
    elif source.endswith(YAMLS):
        holder = _holder(Path(source))
    if holder:
        return holder, f"the {form} that holds it is of this kind"
    named = facts.releases if facts is not None else ()
    for name in (TRAINER, ACCELERATE):  # the Trainer is the one that calls the other
        if name in named:
            return name, "by --with"
    by_neighbour = _neighbour(Path(source or document.name))
    if by_neighbour is not None:
        return by_neighbour
    if stops_alone(document.value):
        return TRAINER, 'DeepSpeed alone stops at its "auto"'
    return ALONE, 'no "auto" that stops it'


_PLUGIN = re.compile(r"^\s*deepspeed_config(?:_file)?\s*:", re.MULTILINE)
_ARGUMENT = re.compile(r"""^\s*["']?deepspeed["']?\s*:""", re.MULTILINE)


def _holder(path: Path) -> str:
    """Whose YAML or JSON a file is that holds or names a config; empty where nobody's."""
    text = _text(path)
    if _PLUGIN.search(text):
        return ACCELERATE
    return TRAINER if _ARGUMENT.search(text) else ""


def _neighbour(path: Path) -> tuple[str, str] | None:
    """The program of a file in the same folder that names this one."""
    try:
        beside = sorted(each for each in path.parent.iterdir() if each.suffix in (*YAMLS, ".json"))
    except OSError:
        return None
    for each in beside[:MOST_NEIGHBOURS]:
        text = "" if each.name == path.name else _text(each)
        holder = _holder(each) if re.search(rf"[\s\"'/]{re.escape(path.name)}\b", text) else ""
        if holder:
            return holder, f"{each.name} names it"
    return None


def _text(path: Path) -> str:
    """A small text file; empty for anything else."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_NEIGHBOUR:
            return ""
        return path.read_text("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def stops_alone(config: object) -> bool:
    """Whether a config has an "auto" that the Trainer fills and DeepSpeed by itself stops at."""
    if not is_block(config):
        return False
    alone = runtime_of(ALONE)
    stops = (AutoHandling.REFUSED, AutoHandling.REFUSED_LATE)
    return any(
        alone.on_auto(tuple(path.split(".")), config) in stops
        for path in filled_by(runtime_of(TRAINER), config)
    )


def ranks_fixed(config: Any, facts: "Facts | None") -> int | None:
    """The number of data-parallel ranks that three batch sizes go with, where none was given.

    None where there are no such machines.
    """
    if facts is not None and facts.world_size is not None:
        return None
    ranks = Triple(*(integral(value_at(config, key)) for key in KEYS)).ranks
    return None if ranks is None or ranks > MOST_RANKS else ranks


def filled_by(runtime: "Runtime", config: Any) -> list[str]:
    """The dotted paths of every "auto" for which the program has a value."""
    return [path for path in runtime.auto_fills if value_at(config, path) == AUTO]
