"""Complete documents and facts from launch files, for every command."""

from collections.abc import Iterator
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from dsconfig.facts import dialects, gathering, launch_files, launch_request
from dsconfig.facts.dialects import Dialect
from dsconfig.facts.facts import Companions, Facts
from dsconfig.facts.inputs import FactError
from dsconfig.facts.launch_facts import FLAG, Origin, Sourced
from dsconfig.facts.launch_files import Launch
from dsconfig.facts.model import ModelOutline
from dsconfig.facts.naming import named
from dsconfig.facts.request import FactsRequest
from dsconfig.facts.training import GATHERED_AS, TrainingFacts
from dsconfig.report import Diagnostic, Effect
from dsconfig.source import findings
from dsconfig.source.document import Document
from dsconfig.source.file_kinds import SCRIPTS
from dsconfig.source.pointer import is_block

SUFFIXES = (".yaml", ".yml", ".json", ".py", *SCRIPTS)
_ADAPTERS = ("lora_rank", "lora_targets", "base_weights")


def launch_of(document: Document, facts: Facts | None = None) -> Launch | None:
    """Return the launch that a document was read from, None for a ds_config alone.

    Facts that are given decide others: the accumulation of some programs follows from the ranks.
    """
    name = document.opened or document.named_in or document.name
    is_launch = bool(document.container) or without_config(document)
    if not is_launch or not name.endswith(SUFFIXES):
        return None
    facts = Facts() if facts is None else facts
    return launch_files.launch_in(name, facts.releases, _stated(facts))


def program_of(document: Document, facts: Facts | None) -> Dialect | None:
    """Return the program whose launch file a document was read from, if it is known."""
    if facts is not None and facts.passed_on_by:
        return dialects.dialect(facts.passed_on_by)
    launch = launch_of(document, facts)
    return None if launch is None else launch.program


def without_config(document: Document) -> bool:
    """Return whether a file has no ds_config that the reader of files finds."""
    codes = {each.code for each in document.diagnostics}
    return document.is_unreadable or findings.NO_CONFIG in codes


def with_config(document: Document) -> Document:
    """Return the document of the ds_config that a program ships or builds, if its launch file
    names no other; else the document itself."""
    if not without_config(document):
        return document
    launch = launch_of(document)
    if any(
        each.code == findings.NO_CONFIG and each.effect is Effect.ALTERED
        for each in document.diagnostics
    ):
        return document  # its launcher turns DeepSpeed off
    if launch is not None and launch.document is None and not document.is_unreadable:
        note = findings.no_config_named(launch.why_no_config)
        found = (note, *_beside(document))
        return document._replace(diagnostics=found, is_broken=False, is_unreadable=True)
    if launch is None or launch.document is None or without_config(launch.document):
        return document
    name = document.opened or document.named_in or document.name
    found = (*launch.document.diagnostics, *_beside(document))
    return launch.document._replace(
        container=_values(launch), named_in=name, diagnostics=found, launcher=document.launcher
    )


def at_releases(document: Document, facts: Facts) -> Document:
    """Return the ds_config that a program builds at the release that is given; else the document
    itself."""
    launch = launch_of(document, facts)
    found = None if launch is None or not launch.release_is_stated else launch.document
    if launch is None or found is None or not launch.program.ds_config:
        return document
    return document._replace(value=found.value, spans=found.spans)


def _values(launch: Launch) -> dict[str, Any]:
    return {key: found.value for key, found in launch.keys.items()}


def passed_in_code(document: Document) -> Document:
    """Return the config that the started Python script passes to the Trainer, which replaces the
    one of accelerate's YAML; else the document itself."""
    launch = launch_of(document)
    passed = None if launch is None else launch.value_of("deepspeed")
    found = None if launch is None else launch.document
    if launch is None or found is None or not is_block(passed) or without_config(found):
        return document
    name = document.opened or document.named_in or document.name
    diagnostics = (*found.diagnostics, *_beside(document))
    return found._replace(
        container=_values(launch), opened=name, launcher=document.launcher, diagnostics=diagnostics
    )


def as_written(document: Document) -> Document:
    """Return the ds_config that a launch file names, with what the program writes into it."""
    launch = launch_of(document)
    if launch is None:
        return document
    return launch_files.with_written(document, launch.written, launch.program.title)


def _beside(document: Document) -> Iterator[Diagnostic]:
    """Yield the findings about a launch file other than that it has no ds_config."""
    for found in document.diagnostics:
        if found.code not in (findings.NO_CONFIG, findings.UNREADABLE):
            yield found._replace(file=found.file or document.name)


def complete(facts: Facts, launch: Launch) -> Facts:
    """Return the facts, completed from a launch; given facts win.

    A model that is not known is an outline with the reason.
    """
    request = _request(facts, launch)
    try:
        found = gathering.facts_of(request)
    except FactError as error:
        kept = {name: value for name, value in request.stated.items() if name not in _ADAPTERS}
        named = launch.value("model")
        if facts.model is None and facts.outline is None:
            kept.pop("model", None)
        try:
            found = gathering.facts_of(FactsRequest(**kept))
        except FactError:
            return facts  # a value of the wrong type, which a rule reports
        if error.argument in ("model", *_ADAPTERS) and found.model is None and named is not None:
            found = replace(found, outline=ModelOutline(name=str(named), why=str(error)))
    found = replace(launch_request.with_origins(found, launch), passed_on_by=launch.program.name)
    return _merged(facts, found)


def _request(facts: Facts, launch: Launch) -> FactsRequest:
    request = launch_request.completed(FactsRequest(), launch)
    model = facts.model
    if model is not None:
        request.model = model
        is_adapted = model.trainable < model.parameters
        if is_adapted:
            request.lora_rank = request.lora_targets = None
        request.base_weights = None if facts.base_weights else request.base_weights
    elif facts.outline is not None:
        request.model = request.lora_rank = request.lora_targets = request.base_weights = None
    if facts.world_size is not None:
        request.gpus = request.nodes = None
    return request


def _merged(facts: Facts, found: Facts) -> Facts:
    """Return facts where given ones win over those found."""
    given = {
        each.name: value
        for each in fields(Facts)
        if each.name not in _MERGED
        and (value := getattr(facts, each.name)) != each.default
        and value not in (None, {})
    }
    return replace(
        found,
        **given,
        outline=facts.outline or found.outline,
        releases=facts.releases,
        passed_on_by=facts.passed_on_by or found.passed_on_by,
        training=_merged_training(facts.training, found.training),
        companions=_merged_companions(facts.companions, found.companions),
        origins=MappingProxyType({**found.origins, **facts.origins}),
    )


_MERGED = (*("training", "companions", "origins", "model", "outline", "releases", "passed_on_by"),)


def _merged_companions(given: Companions, found: Companions) -> Companions:
    own = {
        each.name: value
        for each in fields(Companions)
        if (value := getattr(given, each.name)) is not None
    }
    return replace(found, **own)


def _merged_training(given: TrainingFacts | None, found: TrainingFacts | None) -> Any:
    if given is None or found is None:
        return given or found
    own = {
        each.name: value
        for each in fields(TrainingFacts)
        if (value := getattr(given, each.name)) is not None and value != {}
    }
    if given.arguments:  # a file of arguments that is given replaces those of the launch
        return given
    execution = {**found.execution, **given.execution}
    return replace(found, **{**own, "execution": MappingProxyType(execution)})


def _stated(facts: Facts) -> dict[str, Sourced]:
    """Return given facts under their names in a launch."""
    training = facts.training
    values: dict[str, tuple[Any, str]] = {
        "ranks": (facts.world_size, "gpus"),
        "nodes": (facts.nodes if "nodes" in facts.origins else None, "nodes"),
    }
    for field, argument in GATHERED_AS.items():
        if argument in ("micro_batch", "accumulation", "seq_len", "precision"):
            values[argument] = (getattr(training, field, None), argument)
    if facts.named_model is not None:
        values["model"] = (facts.named_model.name, "model")
    return {
        name: Sourced(value, Origin(FLAG, named(argument)))
        for name, (value, argument) in values.items()
        if value is not None
    }
