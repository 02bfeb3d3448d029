"""The target program of a config: as specified, or inferred from the file and its surroundings.

[Note: inference] Most ds_configs are run by the Trainer or accelerate, and few users specify it.
Evidence, in this order: TrainingArguments or an accelerate YAML on the command line; a YAML that
embeds the config; a release of either program (--with); a file in the same folder that references
the config; an "auto" that DeepSpeed rejects, so another program must fill it in. The library infers
only for ``tune``, from facts: otherwise its callers name the runtime.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig.batch import Triple
from dsconfig.facts.naming import named
from dsconfig.lazy_imports import lazy_imports
from dsconfig.mesh import MOST_RANKS
from dsconfig.project.errors import usage
from dsconfig.project.neighbours import ACCELERATE, TRAINER, YAMLS, Neighbours, container_program
from dsconfig.report.report import FileTarget
from dsconfig.runtimes.base import AUTO, AutoHandling, implied_by, runtime_of
from dsconfig.schema.markers import integral
from dsconfig.schema.paths import BATCH, KeyPath
from dsconfig.source import arctic_config, option_configs
from dsconfig.source.file_kinds import SCRIPTS
from dsconfig.source.pointer import is_block, value_at

with lazy_imports():
    from dsconfig.checks.rule import fills_auto
    from dsconfig.facts import embedded_facts, launches
    from dsconfig.project import settings
    from dsconfig.schema import installed
    from dsconfig.schema import version as versions

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.source import Document

EVERY = "all"
"""Runtime name that selects all of them."""
ALONE = "deepspeed"
WRAPPERS = (TRAINER, ACCELERATE)
"""Programs that call DeepSpeed; the Trainer comes first because it uses accelerate."""
DEFAULT, NO_AUTO = "default", 'no "auto" to fill in'
NEWEST, INSTALLED = "newest supported", "installed"
PLANNED = "plans are executed by dsengine"
UNSPECIFIED = (NEWEST, INSTALLED)
"""Sources of a release that the user did not specify."""


class TargetProgram(NamedTuple):
    """The program that runs a config; ``inferred_from`` is empty if the user specified it."""

    runtime: "Runtime"
    inferred_from: str = ""
    release_source: str = ""
    checked_releases: tuple[str, ...] = ()
    """Programs and releases (--with) whose known bugs are checked."""
    newer: tuple[str, ...] = ()
    """Releases in use that are newer than the newest supported."""

    @property
    def headline(self) -> str:
        """``target: transformers 5.23 + DeepSpeed 0.19.8 (inferred from "auto"; ...)``."""
        remarks: list[str] = []
        if self.inferred_from in (DEFAULT, NO_AUTO, PLANNED):
            remarks = [self.inferred_from]
        elif self.inferred_from:
            remarks = [f"inferred from {self.inferred_from}"]
        remarks += self.newer
        if self.checked_releases:
            remarks.append(f"checked for known bugs of {' and '.join(self.checked_releases)}")
        if self.inferred_from:
            remarks.append(f"override with {named('runtime')}")
        detail = f" ({'; '.join(remarks)})" if remarks else ""
        return f"target: {self.runtime.described}{detail}"

    @property
    def data(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "runtime": self.runtime.name,
            "release": str(self.runtime.version),
            "inferred_from": self.inferred_from or None,
        }

    def target(self, config: object, facts: "Facts | None") -> FileTarget:
        """Return the report form: also counts "auto" values filled in, and implied ranks."""
        return FileTarget(
            runtime=self.runtime.name,
            release=str(self.runtime.version),
            inferred_from=self.inferred_from or None,
            described=self.headline,
            fills=len(filled_by(self.runtime, config)),
            ranks=ranks_fixed(config, facts),
        )


def target_program(
    name: str | None,
    version: str | None,
    *,
    document: "Document | None" = None,
    source: str = "",
    facts: "Facts | None" = None,
    project: str = "",
    neighbours: Neighbours | None = None,
) -> TargetProgram:
    """Return the program that runs a file, at its DeepSpeed release.

    ``name`` is the one specified by the user or the ``project`` file; ``source`` is the file as
    named on the command line. Callers that check many files share ``neighbours``. Raises UsageError
    for an unknown name or release.
    """
    if not project:
        defaults = settings.settings_for(source or ".")
        version = version or defaults.version
        name, project = (name, "") if name else (defaults.runtime, defaults.file)
    if project and name == ALONE and document is not None and document.container:
        name = None  # DeepSpeed alone does not read a file that embeds a config
    release = release_of(version)
    release_source = _release_source(version, release)
    if name is not None:
        basis = project
    else:
        name, basis = _infer(document, source, facts, neighbours or Neighbours())
    with usage(f"{project}: runtime" if project else "--runtime"):
        runtime = runtime_of(name, release)
    # DeepSpeed alone has none of their faults.
    releases = facts.releases.items() if facts is not None and fills_auto(runtime) else ()
    checked = (
        f"{program} {release}" for program, release in releases if program in (*WRAPPERS, "trl")
    )
    newer = tuple(newer_releases(runtime, facts))
    return TargetProgram(runtime, basis, release_source, tuple(checked), newer)


def _release_source(version: str | None, release: "versions.Version") -> str:
    """Return where a DeepSpeed release comes from; "" if it is specified."""
    if version is not None:
        return ""
    return INSTALLED if release != versions.NEWEST else NEWEST


def newer_releases(runtime: "Runtime", facts: "Facts | None" = None) -> Iterator[str]:
    """Describe each release in use that is newer than the newest supported: those of --with, else
    the installed ones."""
    if runtime.version > versions.NEWEST:
        yield _newer("DeepSpeed", str(runtime.version), "installed", str(versions.NEWEST))
    given: Mapping[str, str] = {} if facts is None else facts.releases
    for name in USED_BY.get(runtime.name, ()):
        release, known = given.get(name) or installed.installed_release(name), runtime_of(name)
        if release is not None and _feature(release) > _feature(known.release):
            yield _newer(name, release, "in use" if name in given else "installed", known.release)


USED_BY = {TRAINER: (TRAINER, ACCELERATE), ACCELERATE: (ACCELERATE,)}
"""Packages, other than DeepSpeed, whose code reads the config of a program."""


def _feature(release: str) -> tuple[int, int]:
    """Return major and minor number; zeros for a release that is not a version."""
    try:
        version = versions.Version.parse(release)
    except ValueError:
        return (0, 0)
    return version.major, version.minor


def _newer(name: str, release: str, how: str, known: str) -> str:
    return f"{name} {release} is {how}; checked as {known}, the newest supported"


def plan_target(name: str | None, version: str | None) -> TargetProgram:
    """Return the program that executes a plan (default: dsengine). Raises UsageError."""
    with usage("--runtime"):
        runtime = runtime_of(name or "dsengine", release_of(version))
    return TargetProgram(runtime, "" if name else PLANNED, newer=tuple(newer_releases(runtime)))


def release_of(text: str | None, *, option: str = "--deepspeed-version") -> "versions.Version":
    """Return the given release, the installed one, or the newest supported.

    Raises UsageError for an unknown release, naming the nearest.
    """
    if text is None:
        return installed.installed_or_newest()
    with usage(option):
        return versions.known_release(text)


def _infer(
    document: "Document | None", source: str, facts: "Facts | None", neighbours: Neighbours
) -> tuple[str, str]:
    """Return the name of the program and the evidence for it."""
    if document is not None and arctic_config.is_arctic(document.container):
        return ALONE, "the ArcticTraining YAML"
    built = None if document is None else option_configs.built_config(document.container)
    if built is not None:
        return ALONE, f"options of {built.program}"
    form = "YAML" if source.endswith(YAMLS) else "JSON"
    form = "script" if source.endswith(SCRIPTS) else form
    launched = None
    if document is not None and document.container:
        launched = launches.program_of(document, facts)
    if launched is not None and launched.reader:
        title = "trainer" if launched.name == TRAINER else launched.title
        return launched.reader, f"the {title} {form}"
    implied = None if facts is None else implied_by(facts)
    if implied is not None:
        return implied
    if document is None:
        return (source and neighbours.program_for(Path(source))) or (ALONE, DEFAULT)
    container = ""
    if document.container:
        if embedded_facts.is_accelerate_config(document.container):
            container = ACCELERATE
        elif embedded_facts.is_of_trainer(document.container):
            container = TRAINER
    elif source.endswith(YAMLS):
        container = container_program(Path(source))
    if container:
        kind = "accelerate" if container == ACCELERATE else "trainer"
        return container, f"the {kind} {form}"
    releases = facts.releases if facts is not None else ()
    for name, program in ((TRAINER, TRAINER), (ACCELERATE, ACCELERATE), ("trl", TRAINER)):
        if name in releases:
            return program, "--with"
    referenced = neighbours.program_for(Path(source or document.name))
    if referenced is not None:
        return referenced
    if has_foreign_auto(document.value):
        return TRAINER, '"auto"'
    return ALONE, DEFAULT if document.is_broken else NO_AUTO


def has_foreign_auto(config: object) -> bool:
    """Return whether a config has an "auto" that the Trainer fills in and DeepSpeed rejects."""
    if not is_block(config):
        return False
    alone = runtime_of(ALONE)
    rejected = (AutoHandling.REFUSED, AutoHandling.REFUSED_LATE)
    return any(
        alone.on_auto(path, config) in rejected for path in filled_by(runtime_of(TRAINER), config)
    )


def ranks_fixed(config: Any, facts: "Facts | None") -> int | None:
    """Return the data-parallel ranks implied by the three batch sizes.

    None if the number of GPUs is specified or the implied one is not plausible.
    """
    if facts is not None and facts.world_size is not None:
        return None
    ranks = Triple(*(integral(value_at(config, key)) for key in BATCH)).ranks
    return None if ranks is None or ranks > MOST_RANKS else ranks


def filled_by(runtime: "Runtime", config: Any) -> list[KeyPath]:
    """Return the path of each "auto" that the program fills in."""
    return [path for path in runtime.auto_fills if value_at(config, path) == AUTO]
