"""The estimate of a run that ran out of GPU memory, for ``doctor``."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig.commands import log_facts, options, suggested_changes
from dsconfig.cost import estimator, workload
from dsconfig.facts.request import FactsRequest
from dsconfig.failures.text import redacted_values
from dsconfig.project import accepted_changes, assumed_facts, changes, despite_errors, inference
from dsconfig.project.errors import UsageError
from dsconfig.project.verdict import not_fitting, overall
from dsconfig.report import writers
from dsconfig.report.sizes import size

if TYPE_CHECKING:
    from dsconfig.cost.estimate import Option
    from dsconfig.cost.remedies import Change
    from dsconfig.facts.run_log import RunLog
    from dsconfig.runtimes.base import Runtime
    from dsconfig.source import Document

MOST_COMPONENTS = 3
"""Components that are named, largest first."""


class MemoryAnswer(NamedTuple):
    """What is estimated for a config, or what to specify for an estimate."""

    verdict: str
    option: "Option | None" = None
    changes: "tuple[Change, ...]" = ()
    program: "Runtime | None" = None
    document: "Document | None" = None
    has_activations: bool = True
    is_redacted: bool = False
    """Without paths and hosts of the config and the log."""

    @property
    def largest(self) -> list[tuple[str, int]]:
        """The largest components at the peak, with their bytes."""
        if self.option is None:
            return []
        device = self.option.device
        total: Counter[str] = Counter()
        for part in device.components:
            if device.peak_phase in part.phases:
                total[part.name] += part.bytes
        return total.most_common(MOST_COMPONENTS)

    @property
    def data(self) -> dict[str, Any]:
        """The JSON form."""
        found: list[dict[str, Any]] = []
        if self.program is not None and self.document is not None:
            found = changes.change_data(self.changes, self.program, self.document)
        found = [{**each, "diff": self._shown(each["diff"])} for each in found]
        parts = [{"name": name, "bytes": count} for name, count in self.largest]
        return {"verdict": self._shown(self.verdict), "largest": parts, "remedies": found}

    def _shown(self, value: Any) -> Any:
        return redacted_values(value) if self.is_redacted else value

    def lines(self) -> Iterator[str]:
        """Yield the verdict, the largest components, and the changes that make the run fit."""
        yield f"Estimate: {self._shown(self.verdict)}"
        if self.largest:
            listed = ", ".join(f"{name} {size(count)}" for name, count in self.largest)
            yield f"Largest: {listed}."
        if self.changes and self.program is not None and self.document is not None:
            yield from self._shown(
                suggested_changes.change_lines(
                    self.changes, self.program, self.document, activations=self.has_activations
                )
            )


def of_run(
    config: str, document: "Document", log: "RunLog", logged: Path, runtime: str | None = None
) -> MemoryAnswer:
    """Return the estimate of a config with the facts of its log, for a program (default: inferred);
    what prevents one is its verdict."""
    try:
        return _of_run(config, document, log, logged, runtime)
    except (UsageError, ValueError) as error:
        return MemoryAnswer(str(error))


def _of_run(
    config: str, document: "Document", log: "RunLog", logged: Path, runtime: str | None
) -> MemoryAnswer:
    facts = options.facts_from(FactsRequest(), config)
    facts, _ = log_facts.with_log(facts, log, logged)
    facts = options.completed(facts, document)
    program = inference.target_program(
        runtime, log_facts.release(log), document=document, source=config, facts=facts
    ).runtime
    facts, _ = assumed_facts.for_estimate(document, facts, program)
    try:
        workload.require_facts(facts)
    except ValueError as error:
        missing = str(error)
        command = writers.shell(["dsconfig", "estimate", config, "--log", str(logged)])
        return MemoryAnswer(f"{missing} ({writers.code(f'{command} ...')})")
    _, effective, _ = despite_errors.concrete(document, facts, program)
    if effective is None:
        command = writers.shell(["dsconfig", "validate", config])
        return MemoryAnswer(f"the config has errors: run {writers.code(command)}")
    found = estimator.estimate(effective, facts, runtime=program)
    option = found.options[0]
    if facts.sequence_length is None and not not_fitting(option, facts):
        return MemoryAnswer("activations decide, and the sequence length is not known", option)
    limit = log_facts.smaller_device(facts, option, log)
    if limit is facts and not not_fitting(option, facts):
        return MemoryAnswer("fits, so it does not explain the error", option)
    fitting = accepted_changes.cheapest_changes(effective, limit, program, document, count=1)
    verdict = overall(found, facts, is_config=True)
    has_activations = facts.sequence_length is not None
    return MemoryAnswer(verdict, option, tuple(fitting), program, document, has_activations)
