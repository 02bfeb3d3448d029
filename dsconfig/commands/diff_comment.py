"""The Markdown comment of ``dsconfig diff`` for a pull request."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dsconfig.comparison import run_differences
from dsconfig.project.verdict import verdict
from dsconfig.report import writers
from dsconfig.report.sizes import counted
from dsconfig.source.pointer import dotted

if TYPE_CHECKING:
    from dsconfig.comparison.differences import Change
    from dsconfig.comparison.upgrades import UpgradeChange
    from dsconfig.project.run_summary import RunSummary
    from dsconfig.report import Diagnostic


def comment(
    before: "RunSummary", after: "RunSummary", changes: "Sequence[Change | UpgradeChange]"
) -> str:
    """Return what the change does: training, memory and time, findings, and each key."""
    name = writers.code(after.document.name)
    title = f"### {name}" if changes else f"### {name}: no differences in meaning"
    parts = [title, _run(before, after)]
    if changes:
        parts += [
            _training(before, after),
            _memory(before, after),
            *_findings(before, after),
            _keys(changes),
        ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _run(before: "RunSummary", after: "RunSummary") -> str:
    """Return a line with the model, GPUs and target program."""
    facts = after.facts
    model = facts.named_model.name if facts.named_model else "unknown model"
    ranks = facts.world_size
    gpus = facts.device.name if facts.device else counted(ranks or 1, "GPU")
    if facts.device is not None and ranks is not None:
        gpus = f"{ranks} x {gpus}"
    programs = dict.fromkeys(each.program.runtime.described for each in (before, after))
    return writers.markdown(f"{model} on {gpus}, {' → '.join(programs)}")


def _training(before: "RunSummary", after: "RunSummary") -> str:
    if not before.training or not after.training:
        blocked = (each for each in (before, after) if not each.training)
        reasons = (
            f"{writers.code(each.document.name)}: {writers.markdown(each.why)}" for each in blocked
        )
        return f"Training cannot be compared. {'; '.join(reasons)}."
    changes = run_differences.changed_rows(before.training, after.training)
    rows = [(name, writers.markdown(was), writers.markdown(now)) for name, was, now in changes]
    if not rows:
        return "**Training**: unchanged."
    changed = [name for name, *_ in rows]
    same = [name.lower() for name in after.training if name not in changed]
    unchanged = f"\n\nUnchanged: {', '.join(same)}." if same else ""
    return _table(("Training", "Before", "After"), rows) + unchanged


def _memory(before: "RunSummary", after: "RunSummary") -> str:
    """Return the table of memory and time, and whether the run fits."""
    if before.option is None and after.option is None:
        return f"Memory and time are not estimated: {writers.markdown(after.why)}."
    rows = [
        (row.name, _number(row.before, row.unit), _number(row.after, row.unit), row.change)
        for row in run_differences.quantities(before.option, after.option)
    ]
    table = _table(("Memory and time (estimated)", "Before", "After", "Change"), rows)
    option = after.option
    lines = [table]
    if option is None:
        lines.append(f"After: not estimated, {writers.markdown(after.why)}.")
    elif option.fits:
        lines.append(f"**{writers.markdown(verdict(option, after.facts))}**")
    if option is not None and after.facts.sequence_length is None:
        lines.append("Without activations: the sequence length is unknown (`--seq-len`).")
    lines += [
        writers.markdown(f"{sentence[:1].upper()}{sentence[1:]}.") for sentence in after.assumed
    ]
    return "\n\n".join(lines)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    digits = 1 if unit and value >= 10 else 2 if unit else 0
    return f"{value:,.{digits}f} {unit}".rstrip()


def _findings(before: "RunSummary", after: "RunSummary") -> Iterator[str]:
    """Yield lists of the findings that only one of the configs has."""
    known = {_identity(each) for each in before.findings}
    remaining = {_identity(each) for each in after.findings}
    new = [each for each in after.findings if _identity(each) not in known]
    fixed = [each for each in before.findings if _identity(each) not in remaining]
    for title, listed in (("New findings", new), ("Fixed", fixed)):
        if listed:
            yield "\n".join([f"**{title}**", "", *(f"- {_finding(each)}" for each in listed)])


def _identity(finding: "Diagnostic") -> tuple[str, str]:
    return finding.code, finding.pointer


def _finding(finding: "Diagnostic") -> str:
    return f"{finding.severity} {finding.code}: {writers.markdown(finding.message)}"


def _keys(changes: "Sequence[Change | UpgradeChange]") -> str:
    """Return the collapsed list of all keys."""
    rows = [
        (writers.code(dotted(each.pointer)), _value(each.before), _value(each.after), _note(each))
        for each in changes
    ]
    table = _table(("Key", "Before", "After", "Note"), rows)
    title = counted(len(changes), "changed key")
    return f"<details><summary>{writers.html(title)}</summary>\n\n{table}\n\n</details>"


def _note(change: Any) -> str:
    kind = getattr(change, "kind", "")
    return writers.markdown(": ".join(filter(None, (str(kind), change.why))))


def _value(value: object) -> str:
    if value is None:
        return "unset"
    return writers.code(json.dumps(value, ensure_ascii=False))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
