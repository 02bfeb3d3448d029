"""Replay of other programs: the values they write for "auto", and the facts they need."""

from dsconfig.checks import refusals
from dsconfig.facts import Facts
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.runtimes.deciding import decide
from dsconfig.runtimes.replay import Reason, Replay


def fill(draft: Draft) -> None:
    """Replay the runtime and record every value it changes."""
    document, runtime = draft.document, draft.runtime
    if document.json_error is not None and not runtime.reads_hjson:
        return

    def program(config: dict[str, object], facts: Facts) -> Replay:
        return refusals.replayed(document, config, facts, runtime)

    decided = decide(draft.config, draft.facts, program)
    for missing in decided.missing:
        draft.missing(missing.path, missing.message, missing.remedy)
    default = Reason(f"set by {runtime.name}", Source.DEFAULT, {})
    if decided.replay is not None:
        draft.config = decided.replay.config
        draft.failure = decided.replay.failure
        draft.failure_after = decided.replay.failure_after
    for path, new in decided.values.items():
        why = decided.reasons.get(path, default)
        record = draft.note if decided.replay is not None else draft.set
        record(path, new, why.source, why.rule, **why.inputs)
