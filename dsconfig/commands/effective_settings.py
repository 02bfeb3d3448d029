"""``dsconfig validate --show-settings``: the settings of a file, each with its origin."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dsconfig.commands import text_table
from dsconfig.facts.request import flag_of
from dsconfig.project import inference
from dsconfig.project.settings import ProjectSettings, settings_for

if TYPE_CHECKING:
    from dsconfig.commands.validate_options import FindingOptions
    from dsconfig.project.inference import TargetProgram
    from dsconfig.project.validator import Validator

DEFAULT = "default"
COMMAND_LINE = "command line"


class Setting(NamedTuple):
    """A setting in effect, and where it comes from."""

    name: str
    value: str
    origin: str


def table(settings: Iterator[Setting]) -> str:
    """Return the settings as a table."""
    shown = text_table.TextTable("setting", "value", "origin")
    for setting in settings:
        shown.add_row(*setting)
    return str(shown)


def settings_of(
    validator: "Validator",
    file: str,
    findings: "FindingOptions",
    flags: Mapping[str, object],
    formats: tuple[str, str],
) -> Iterator[Setting]:
    """Yield the settings of a file. ``validator``: for that file, with its target program.

    ``flags``: facts on the command line; ``formats``: the output format and its origin.
    """
    project = settings_for(file)
    yield Setting("project file", project.file if project != ProjectSettings() else "none", "")
    if validator.program is None:
        yield Setting("runtime", inference.EVERY, COMMAND_LINE)
    else:
        yield from _program(validator, validator.program, project)
    own = {"select": findings.select, "ignore": findings.ignore}
    yield _rules("select", own["select"], project.select, project, empty="all rules")
    yield _rules("ignore", own["ignore"], project.ignore, project)
    per_file = project.ignored_in(file)
    yield Setting(
        "per-file-ignores", ", ".join(per_file) or "none", project.file if per_file else DEFAULT
    )
    excluded = project.exclude
    yield Setting("exclude", ", ".join(excluded) or "none", project.file if excluded else DEFAULT)
    baseline = findings.baseline
    yield Setting("baseline", str(baseline or "none"), COMMAND_LINE if baseline else DEFAULT)
    yield Setting("output-format", *formats)
    for name, value in flags.items():
        yield Setting(flag_of(name).removeprefix("--"), _text(value), COMMAND_LINE)
    replaced = {"model": "params"}
    for name, fact in project.facts.items():
        if not flags.get(name) and not flags.get(replaced.get(name, name)):
            yield Setting(name, str(fact), project.file)


def _program(
    validator: "Validator", program: "TargetProgram", project: ProjectSettings
) -> Iterator[Setting]:
    inferred = program.inferred_from
    if not inferred:
        origin = COMMAND_LINE
    elif inferred == project.file:
        origin = inferred
    elif inferred in (inference.DEFAULT, inference.NO_AUTO):
        origin = f"default, {inferred}" if inferred != DEFAULT else DEFAULT
    else:
        origin = f"inferred from {inferred}"
    yield Setting("runtime", program.runtime.name, origin)
    if program.release_source:
        origin = program.release_source
    else:
        origin = project.file if validator.version == project.version else COMMAND_LINE
    yield Setting("deepspeed-version", str(program.runtime.version), origin)


def _rules(
    name: str,
    own: Sequence[str] | None,
    configured: Sequence[str],
    project: ProjectSettings,
    empty: str = "none",
) -> Setting:
    """Return the selected or ignored rules: those to select replace the project's, those to ignore
    are added."""
    used = [] if own and name == "select" else list(configured)
    origins = [COMMAND_LINE] if own else []
    origins += [project.file] if used else []
    return Setting(name, ", ".join([*(own or ()), *used]) or empty, ", ".join(origins) or DEFAULT)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
