"""The estimate of a run that ran out of GPU memory, for ``doctor``."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig.commands import log_facts, options, suggested_changes
from dsconfig.cost import estimator, workload
from dsconfig.facts.request import FactsRequest
from dsconfig.project import accepted_changes, assumed_facts, changes, despite_errors, inference
from dsconfig.project.verdict import not_fitting, overall
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
        parts = [{"name": name, "bytes": count} for name, count in self.largest]
        return {"verdict": self.verdict, "largest": parts, "remedies": found}

    def lines(self) -> Iterator[str]:
        """Yield the verdict, the largest components, and the changes that make the run fit."""
        yield f"Estimate: {self.verdict}"
        if self.largest:
            listed = ", ".join(f"{name} {size(count)}" for name, count in self.largest)
            yield f"Largest: {listed}."
        if self.changes and self.program is not None and self.document is not None:
            yield from suggested_changes.change_lines(self.changes, self.program, self.document)


def of_run(config: str, document: "Document", log: "RunLog", logged: Path) -> MemoryAnswer:
    """Return the estimate of a config with the facts of its log.

    Raises UsageError for a config that cannot be read.
    """
    facts = options.facts_from(FactsRequest(), config)
    facts, _ = log_facts.with_log(facts, log, logged)
    facts = options.completed(facts, document)
    program = inference.target_program(
        None, log_facts.release(log), document=document, source=config, facts=facts
    ).runtime
    facts, _ = assumed_facts.for_estimate(document, facts, program)
    try:
        workload.require_facts(facts)
    except ValueError as error:
        missing = getattr(error, "in_flags", str(error))
        return MemoryAnswer(f"{missing} (`dsconfig estimate {config} --log {logged} ...`)")
    _, effective, _ = despite_errors.concrete(document, facts, program)
    if effective is None:
        return MemoryAnswer(f"{config} has errors: run `dsconfig validate {config}`")
    found = estimator.estimate(effective, facts, runtime=program)
    option = found.options[0]
    if facts.sequence_length is None and not not_fitting(option, facts):
        return MemoryAnswer("activations decide, and the sequence length is not known", option)
    limit = log_facts.smaller_device(facts, option, log)
    fitting = accepted_changes.cheapest_changes(effective, limit, program, document, count=1)
    verdict = overall(found, facts, is_config=True)
    return MemoryAnswer(verdict, option, tuple(fitting), program, document)
