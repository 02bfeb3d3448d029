"""The library: functions that each take what the one before gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    # A caller of `validate` does not pay for the planner: each room is entered when it is asked.
    from dsconfig import batch as batches
    from dsconfig.checks import runner
    from dsconfig.cost import estimator
    from dsconfig.facts import embedded_facts
    from dsconfig.facts import facts as known
    from dsconfig.planner import build
    from dsconfig.planner.coverage import findings as engine_findings
    from dsconfig.report import report as reports
    from dsconfig.resolver import entry
    from dsconfig.resolver import resolution as resolutions
    from dsconfig.runtimes import base as programs
    from dsconfig.runtimes import effective as settings
    from dsconfig.schema import installed
    from dsconfig.schema import version as releases
    from dsconfig.source import document as documents
    from dsconfig.source import ignores, reading

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from dsconfig.cost.estimate import Estimate
    from dsconfig.facts import Facts
    from dsconfig.planner.plan import Plan
    from dsconfig.report import Diagnostic, Report
    from dsconfig.resolver.resolution import Resolution
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.effective import Effective
    from dsconfig.schema.version import Version
    from dsconfig.source import Document

    Source = Document | str | Path | Mapping[str, Any]


def read(source: Source, *, name: str | None = None) -> Document:
    """Read a config from a path, ``-``, text, base64, or a dict.

    Never raises for a mistake of the user: what is wrong is in ``Document.diagnostics``.
    """
    return source if isinstance(source, documents.Document) else reading.read(source, name=name)


def validate(
    document: Source,
    facts: Facts | None = None,
    *,
    runtime: str | Runtime | None = None,
    version: str | Version | None = None,
) -> Report:
    """Find everything that is wrong, in one run, in order of position.

    Without ``runtime`` the config is judged for all of them. ``version`` is DeepSpeed's;
    default: that of ``runtime`` where one is given as a value, else the installed release, else
    the newest known. Raises ValueError for an unknown runtime or version, TypeError for facts of
    another kind.
    """
    document = read(document)
    if document.container and runtime is not None:
        runtime = _started(programs.runtime_of(runtime, _version(version, runtime)), document)
    found = runner.check(
        document, _completed(facts, document), runtime=runtime, version=_version(version, runtime)
    )
    found += _not_built(document, facts, runtime, _version(version, runtime), found)
    if document.may_ignore:
        # One program's view leaves rules asleep, so idle requests are told in the whole view only.
        found = ignores.without_ignored(document, found, report_unused=runtime is None)
    return reports.Report(reports.in_order(found))


def resolve(
    document: Source,
    facts: Facts | None = None,
    *,
    runtime: str | Runtime = "dsengine",
    version: str | Version | None = None,
) -> Resolution:
    """Replace every "auto" by a value, and say why.

    For ``deepspeed``, ``transformers`` and ``accelerate`` the answer is what that program would
    do with the file. What ``validate`` finds is not repeated here. ``version`` as there. Raises
    ValueError for an unknown runtime or version, TypeError for facts of another kind.
    """
    document = read(document)
    chosen = _started(programs.runtime_of(runtime, _version(version, runtime)), document)
    return entry.resolve(document, _completed(facts, document), chosen)


def estimate(resolution: Resolution | Effective, facts: Facts) -> Estimate:
    """Bytes on device, host and NVMe, by component and phase.

    Raises ValueError when the resolution has errors or the facts name no model, TypeError for
    a config that was not resolved and for facts of another kind.
    """
    facts = _facts(facts)
    if isinstance(resolution, settings.Effective):
        return estimator.estimate(resolution, facts)
    _insist_on_resolution(resolution, "estimate")
    if resolution.effective is None:
        listed = "; ".join(f"{found.code} {found.message}" for found in resolution.diagnostics)
        raise ValueError(f"the config is not resolved: {listed or 'validate says what is wrong'}")
    program = programs.runtime_of(resolution.runtime, resolution.version)
    return estimator.estimate(resolution.effective, facts, runtime=program)


def plan(resolution: Resolution, facts: Facts) -> Plan:
    """Decide one training run: the only thing an engine is given.

    Raises PlanError (a ValueError) when the config has errors or the batch is not settled,
    TypeError for a config that was not resolved and for facts of another kind.
    """
    _insist_on_resolution(resolution, "plan")
    return build.make_plan(resolution, _facts(facts))


def complete(plan: Plan, facts: Facts) -> Plan:
    """The plan with what depends on the model of ``facts``: units, expected memory, traffic.

    Decides nothing anew. Raises PlanError (a ValueError) when the plan is for another model.
    """
    return build.complete(plan, _facts(facts))


def replan(plan: Plan, facts: Facts) -> Plan:
    """The plan for the ranks of ``facts``, with the same global batch: nodes were lost, or came.

    Raises ValueError where they cannot share that batch, or the config cannot be run by them.
    """
    ranks = _facts(facts).world_size or 1
    batch = plan.batch
    before = batches.Triple(batch.global_batch, batch.micro_batch, batch.accumulation)
    config = {**plan.effective.config, **batches.on_other_ranks(before, ranks).given}
    judged = validate(config, facts, runtime=plan.runtime, version=plan.release)
    resolution = resolve(config, facts, runtime=plan.runtime, version=plan.release)
    if refusals := judged.refusals or resolution.refusals:
        why = "; ".join(f"{each.pointer}: {each.message}" for each in refusals)
        raise build.PlanError(f"{ranks} ranks cannot go on with this plan: {why}")
    return build.make_plan(resolution, _facts(facts))


def _facts(facts: Facts | None) -> Facts:
    """The facts; none known where nothing is given."""
    if facts is None:
        return known.Facts()
    if not isinstance(facts, known.Facts):  # pyright: ignore[reportUnnecessaryIsInstance]
        wrong = type(facts).__name__
        raise TypeError(f"facts are dsconfig.Facts, not {wrong}: write dsconfig.gather(...)")
    return facts


def _completed(facts: Facts | None, document: Document) -> Facts:
    """The facts, with those of the YAML that holds the document."""
    return (
        embedded_facts.completed(_facts(facts), document) if document.container else _facts(facts)
    )


def _started(runtime: Runtime, document: Document) -> Runtime:
    """The program as the YAML that holds the document starts it."""
    if document.container and embedded_facts.is_accelerate_config(document.container):
        return runtime.under_accelerate_launch(config_file=not document.is_generated)
    return runtime


def _not_built(
    document: Document,
    facts: Facts | None,
    runtime: str | Runtime | None,
    version: Version,
    found: tuple[Diagnostic, ...],
) -> tuple[Diagnostic, ...]:
    """What dsengine does not have, where it alone is asked about, and no rule stops it before."""
    asked = runtime is not None and programs.runtime_of(runtime, version)
    if not asked or asked.runs_deepspeed or reports.Report(found).refusals:
        return ()
    if document.is_template or document.is_broken or document.is_unreadable:
        return ()
    return tuple(engine_findings.not_built(document, _completed(facts, document), asked))


def _insist_on_resolution(resolution: object, function: str) -> None:
    if not isinstance(resolution, resolutions.Resolution):
        raise TypeError(
            f"{function} takes a resolved config, not {type(resolution).__name__}: "
            f"write dsconfig.{function}(dsconfig.resolve(config, facts), facts)"
        )


def _version(version: str | Version | None, runtime: str | Runtime | None) -> Version:
    if version is None:
        if runtime is None or isinstance(runtime, str):
            return installed.installed_or_newest()
        return runtime.version
    if isinstance(version, releases.Version):
        return version
    if not isinstance(version, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f'version={version!r} is no text; write one like "0.19.8"')
    return releases.Version.parse(version)
