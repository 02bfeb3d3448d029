"""The library functions: read, validate, resolve, estimate, plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

from dsconfig.lazy_imports import lazy_imports
from dsconfig.source.pointer import is_block

with lazy_imports():
    # Deferred, so that a caller of `validate` does not pay for importing the planner.
    from dsconfig import batch as batches
    from dsconfig import examination, opening
    from dsconfig.comparison import differences, upgrades
    from dsconfig.cost import estimator, tuning
    from dsconfig.facts import facts as facts_module
    from dsconfig.failures import reading as failures
    from dsconfig.planner import build
    from dsconfig.planner import capabilities as capability_table
    from dsconfig.reference import explanation
    from dsconfig.report import report as reports
    from dsconfig.resolver import resolution as resolutions
    from dsconfig.runtimes import base as runtimes
    from dsconfig.runtimes import effective as settings
    from dsconfig.schema import installed
    from dsconfig.schema import version as releases
    from dsconfig.source import document as documents
    from dsconfig.source import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dsconfig.comparison.differences import Change
    from dsconfig.comparison.upgrades import UpgradeChange
    from dsconfig.cost.estimate import Estimate
    from dsconfig.cost.search_space import Candidate
    from dsconfig.facts import Facts
    from dsconfig.failures.diagnosis import Diagnosis
    from dsconfig.planner.capabilities import Kind, Table
    from dsconfig.planner.plan import Plan
    from dsconfig.report import Report
    from dsconfig.resolver.resolution import Resolution
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.effective import Effective
    from dsconfig.schema.version import Version
    from dsconfig.source import Document

    Source = Document | str | Path | Mapping[str, Any]


def read(source: Source, *, name: str | None = None) -> Document:
    """Read a config from a path, ``-`` (stdin), text, base64 or a dict.

    Never raises for an invalid config: problems are listed in ``Document.diagnostics``.
    """
    if isinstance(source, documents.Document):
        return source
    return opening.read(source, name=name)


def validate(
    document: Source,
    facts: Facts | None = None,
    *,
    runtime: str | Runtime | None = None,
    version: str | Version | None = None,
) -> Report:
    """Return all findings for a config, in one run.

    Without ``runtime``, check against all target programs. ``version`` is the DeepSpeed version;
    default: that of ``runtime`` if it is a Runtime, else the installed one, else the newest
    known. Raises ValueError for an unknown runtime or version, TypeError if ``facts`` is not a
    Facts.
    """
    program = None if runtime is None else _program(runtime, version)
    report = examination.findings(
        read(document), _facts(facts), program, _release(version, runtime)
    )
    return reports.Report(report.diagnostics)


def resolve(
    document: Source,
    facts: Facts | None = None,
    *,
    runtime: str | Runtime = "dsengine",
    version: str | Version | None = None,
) -> Resolution:
    """Replace every "auto" by a value and record the reason for each in a ledger.

    For ``deepspeed``, ``transformers`` and ``accelerate`` the result is what that program does
    with the file. The diagnostics are the errors of ``validate`` and the facts that are missing.
    ``version`` is as in ``validate``. Raises ValueError for an unknown runtime or version,
    TypeError if ``facts`` is not a Facts.
    """
    return examination.resolution(read(document), _facts(facts), _program(runtime, version))


def estimate(resolution: Resolution | Effective, facts: Facts) -> Estimate:
    """Estimate memory on GPU, host and NVMe by component and phase, and the step time.

    Raises ValueError if the resolution has errors or the facts have no model, TypeError for an
    unresolved config or if ``facts`` is not a Facts.
    """
    facts = _facts(facts)
    if isinstance(resolution, settings.Effective):
        return estimator.estimate(resolution, facts)
    _require_resolution(resolution, "estimate")
    if resolution.effective is None:
        listed = "; ".join(found.cause for found in resolution.refusals)
        why = f"the config is not resolved: {listed or 'run validate for the errors'}"
        raise ValueError(why)
    program = runtimes.runtime_of(resolution.runtime, resolution.version)
    return estimator.estimate(resolution.effective, facts, runtime=program)


def plan(resolution: Resolution, facts: Facts) -> Plan:
    """Build the Plan of one training run, the only input of an engine.

    Raises PlanError (a ValueError) if the config has errors or the batch size is open, TypeError
    for an unresolved config or if ``facts`` is not a Facts.
    """
    _require_resolution(resolution, "plan")
    return build.make_plan(resolution, _facts(facts))


def capabilities(kind: Kind) -> Table:
    """Return what dsengine supports, ignores and refuses, by name; the page is
    docs/reference/engine-keys.md.

    ``kind``: "key" (of a config), "degree" (of parallelism), "style" (of a tensor-parallel plan),
    "optimizer", "feature", and what DeepSpeed has but dsengine does not: "name" (below
    ``deepspeed``), "attribute" (of its engine), "parameter" (attributes of its parameters), "flag"
    (of its launcher). Each has one or more cases with ``status``, ``reason``, ``instead`` (the
    alternative) and ``condition``, "" for none; the first whose condition holds decides. Raises
    ValueError for an unknown kind.
    """
    return capability_table.capabilities(kind)


def complete(plan: Plan, facts: Facts) -> Plan:
    """Return the plan with its model-dependent parts: units, expected memory, traffic.

    Changes no decision. Raises PlanError (a ValueError) if the plan is for another model.
    """
    return build.complete(plan, _facts(facts))


def replan(plan: Plan, facts: Facts) -> Plan:
    """Return the plan for a changed number of ranks, keeping the global batch size.

    Raises ValueError if the ranks cannot share that batch or cannot run the config.
    """
    ranks = _facts(facts).world_size or 1
    batch = plan.batch
    before = batches.Triple(batch.global_batch, batch.micro_batch, batch.accumulation)
    config = {**plan.effective.config, **batches.on_other_ranks(before, ranks).given}
    release = releases.Version.parse(plan.release)
    report = validate(config, facts, runtime=plan.runtime, version=release)
    resolution = resolve(config, facts, runtime=plan.runtime, version=release)
    if refusals := report.refusals or resolution.refusals:
        why = "; ".join(f"{refusal.pointer}: {refusal.message}" for refusal in refusals)
        raise build.PlanError(f"{ranks} ranks cannot continue this plan: {why}")
    return build.make_plan(resolution, _facts(facts))


def tune(
    facts: Facts, *, runtime: str | Runtime | None = None, version: str | Version | None = None
) -> tuple[Candidate, ...]:
    """Rank ZeRO stage, offload, recomputation and, unless the model fits without, parallel degrees
    by estimated throughput, the best first.

    Each candidate has the largest micro batch that fits and its ``config``; ``reason`` is empty if
    it fits. Default of ``runtime``: transformers or accelerate if the facts contain their settings,
    else deepspeed. Raises ValueError if the model, the number of GPUs or their memory is unknown,
    or for an unknown runtime or version, TypeError if ``facts`` is not a Facts.
    """
    facts = _facts(facts)
    if runtime is None:
        runtime, _ = runtimes.implied_by(facts) or ("deepspeed", "")
    program = _program(runtime, version)
    return tuning.tune(facts, runtime=program)


def explain(name: str | Path | Document) -> str:
    """Explain a config key, a rule (by code or name), or every key of a config file.

    The page of a rule is Markdown. Raises ValueError with suggestions for an unknown name.
    """
    if isinstance(name, documents.Document):
        return explanation.text_of_file(name)
    if not isinstance(name, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{plain.shown(name)} is not a key, a rule or a file")
    return explanation.text_of(str(name))


@overload
def diff(
    a: Source,
    b: Source,
    *,
    from_version: str | Version | None = None,
    to_version: str | Version | None = None,
    runtime: str | Runtime = "deepspeed",
) -> tuple[Change, ...]: ...
@overload
def diff(
    a: Source,
    b: None = None,
    *,
    from_version: str | Version,
    to_version: str | Version | None = None,
    runtime: str | Runtime = "deepspeed",
) -> tuple[UpgradeChange, ...]: ...
def diff(
    a: Source,
    b: Source | None = None,
    *,
    from_version: str | Version | None = None,
    to_version: str | Version | None = None,
    runtime: str | Runtime = "deepspeed",
) -> tuple[Change, ...] | tuple[UpgradeChange, ...]:
    """Return the differences in meaning of two configs, or of one between two DeepSpeed releases.

    Without ``b``, ``from_version`` is required, and the result is what an upgrade changes for
    ``runtime``. Raises ValueError for a config that is not a valid object, or an unknown version.
    """
    if b is None and from_version is None:
        raise ValueError("specify b, or from_version to compare two releases")
    before = _release(from_version, None, "from_version")
    after = (
        _release(to_version, None, "to_version") if to_version is not None or b is None else before
    )
    first = read(a)
    if b is not None:
        second = _object(read(b))
        return tuple(differences.between_configs(_object(first), second, before, after))
    _object(first)
    changes = upgrades.upgrade_changes(
        first, before, after, lambda version: validate(first, runtime=runtime, version=version)
    )
    return tuple(changes)


def _object(document: Document) -> dict[str, Any]:
    """Return the config of a document. Raises ValueError if it cannot be compared."""
    value: object = document.value
    refused = reports.Report(document.diagnostics).refusals
    if not is_block(value) or refused:
        reason = refused[0].message if refused else "not an object"
        raise ValueError(f"{document.name} cannot be compared: {reason}")
    return value


def _facts(facts: Facts | None) -> Facts:
    """Return the facts, or empty facts for None."""
    if facts is None:
        return facts_module.Facts()
    if not isinstance(facts, facts_module.Facts):  # pyright: ignore[reportUnnecessaryIsInstance]
        wrong = type(facts).__name__
        raise TypeError(f"facts must be dsconfig.Facts, not {wrong}: use dsconfig.gather(...)")
    return facts


def _require_resolution(resolution: object, function: str) -> None:
    if not isinstance(resolution, resolutions.Resolution):
        raise TypeError(
            f"{function} takes a resolved config, not {type(resolution).__name__}: "
            f"call dsconfig.{function}(dsconfig.resolve(config, facts), facts)"
        )


def _program(runtime: str | Runtime, version: str | Version | None) -> Runtime:
    """Return the target program at its release. Raises ValueError that names the argument."""
    release = _release(version, runtime)
    try:
        return runtimes.runtime_of(runtime, release)
    except ValueError as error:
        raise ValueError(f"runtime={error}") from None


def _release(
    version: str | Version | None, runtime: str | Runtime | None, argument: str = "version"
) -> Version:
    """Return the DeepSpeed release. Raises ValueError that names the argument."""
    try:
        return _version(version, runtime)
    except ValueError as error:
        raise ValueError(f"{argument}={error}") from None


def _version(version: str | Version | None, runtime: str | Runtime | None) -> Version:
    if version is None:
        if isinstance(runtime, runtimes.Runtime):
            return runtime.version
        return installed.installed_or_newest()
    if isinstance(version, releases.Version):
        return version
    if not isinstance(version, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f'{plain.shown(version)} is not a string; write one like "0.19.8"')
    return releases.known_release(version)


def diagnose(*logs: str | Path, runtime: str | None = None) -> Diagnosis:
    """Return why a run failed, from the logs of its ranks.

    ``logs`` are files or folders: logs, dumps of torch's flight recorder, py-spy stacks. Remedies
    are for ``runtime``; default: the program that the logs name. ``failures`` has the first failure
    first, and is empty if none is known. Raises FactError for a file that cannot be read,
    ValueError for an unknown runtime.
    """
    if runtime is not None:
        _program(runtime, None)
    return failures.diagnose(logs, runtime)
