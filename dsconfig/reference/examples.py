"""Check the examples of a rule with the options on its page."""

from dataclasses import replace
from pathlib import Path

from dsconfig.checks.rule import Example
from dsconfig.examination import findings, resolution
from dsconfig.facts import Facts, hf_config
from dsconfig.facts.gathering import facts_of as gathered
from dsconfig.facts.model import ModelOutline, ModelTree
from dsconfig.facts.naming import Surface, read_on
from dsconfig.facts.request import FactsRequest, flag_of
from dsconfig.report import Diagnostic
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source import Document, read
from dsconfig.source.reading import BY_SUFFIX


def facts_of(example: Example) -> Facts:
    """Return the facts of an example."""
    written = example.model_config
    described = hf_config.model_or_outline(written, "config.json") if written else None
    request = FactsRequest(**example.facts)
    if isinstance(described, ModelTree):
        request.model = described
    facts = gathered(request)
    return replace(facts, outline=described) if isinstance(described, ModelOutline) else facts


def check_example(example: Example) -> tuple[Diagnostic, ...]:
    """Return what the command of an example reports."""
    version = Version.parse(example.version) if example.version else NEWEST
    program, document = _program(example, version), _document(example)
    with read_on(Surface.COMMAND_LINE):
        if program is not None and example.command == "resolve":
            return resolution(document, facts_of(example), program).diagnostics
        return findings(document, facts_of(example), program, version).diagnostics


def _document(example: Example) -> Document:
    form = BY_SUFFIX.get(Path(example.name).suffix)
    return read(example.config, name=example.name, format=form)


def _program(example: Example, version: Version) -> Runtime | None:
    return None if example.runtime is None else runtime_of(example.runtime, version)


def flags_of(example: Example) -> str:
    """Return the options of the command that set the facts of an example."""
    flags: dict[str, object] = {
        "--runtime": example.runtime or "all",
        "--deepspeed-version": example.version,
        "--model": "config.json" if example.model_config else None,
    }
    for name, fact in example.facts.items():
        if name == "training_args":
            flags[flag_of(name)] = "args.json"
        elif name == "releases":
            flags |= {f"--with {program}=={release}": "" for program, release in fact.items()}
        else:
            flags[flag_of(name)] = fact
    return " ".join(f"{flag} {value}".strip() for flag, value in flags.items() if value is not None)
