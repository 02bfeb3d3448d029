"""Changes in the meaning of a config when DeepSpeed is upgraded."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dsconfig.comparison.read_meaning import read_meaning
from dsconfig.report import Effect, Report
from dsconfig.report.writers import one_line
from dsconfig.schema.catalogue import Key, find, keys
from dsconfig.schema.meaning import Meaning
from dsconfig.schema.paths import BF16, FP16, GRADIENT_CLIPPING, LEARNING_RATE, MAX_LR, KeyPath
from dsconfig.schema.version import Version
from dsconfig.source import Document


class ChangeKind(StrEnum):
    """Kinds of changes, most severe first; the value begins the output line."""

    REFUSED = "newly rejected"
    TRAINS = "trains differently"
    FAULT = "new bug in DeepSpeed"
    UNREAD = "no longer read"
    READ = "newly read"
    WORKS = "works differently"
    ACCEPTED = "no longer rejected"
    FIXED = "fixed bug in DeepSpeed"


@dataclass(frozen=True, slots=True)
class UpgradeChange:
    """One change; ``said`` is the message, ``before`` and ``after`` are values or states."""

    kind: ChangeKind
    pointer: str
    before: Any
    after: Any
    said: str
    why: str = ""

    def __str__(self) -> str:
        return one_line(f"{self.kind}: {self.said}" + (f"  ({self.why})" if self.why else ""))


Check = Callable[[Version], Report]
"""Returns the findings for the document at a release."""


def upgrade_changes(
    document: Document, before: Version, after: Version, check: Check
) -> list[UpgradeChange]:
    """Return the changes of an upgrade, most severe first."""
    old, new = (read_meaning(document.value, version) for version in (before, after))
    changes = [*_no_longer_read(old, new), *_newly_read(old, new), *new_defaults(old, new)]
    changes += _findings(check, before, after, {change.pointer for change in changes})
    return sorted(changes, key=lambda change: list(ChangeKind).index(change.kind))


def _no_longer_read(old: Meaning, new: Meaning) -> Iterator[UpgradeChange]:
    for path in new.unread:
        key = find(path)
        if path in old.unread or key is None:
            continue
        refused = key.refused_from is not None and key.refused_from <= new.version
        kind, word = (ChangeKind.REFUSED, "refused") if refused else (ChangeKind.UNREAD, "not read")
        why = f"last read by {key.until}" if key.until else f"first read by {key.since}"
        yield UpgradeChange(kind, path.pointer, "read", word, str(path), why)


def _newly_read(old: Meaning, new: Meaning) -> Iterator[UpgradeChange]:
    for path in old.unread:
        key = find(path)
        if path not in new.unread and key is not None:
            why = f"read since {key.since}"
            yield UpgradeChange(ChangeKind.READ, path.pointer, "not read", "read", str(path), why)


def new_defaults(old: Meaning, new: Meaning) -> Iterator[UpgradeChange]:
    """Yield the unset keys whose default changes."""
    for key in keys():
        path = key.key_path
        if not key.earlier_defaults or path in new.settings or not _in_use(path, new):
            continue
        was, now = effective_value(path, old), effective_value(path, new)
        if was == now or not (key.read_at(old.version) and key.read_at(new.version)):
            continue
        describe = AFFECTS_TRAINING.get(path)
        kind = ChangeKind.TRAINS if describe else ChangeKind.WORKS
        plain = f"{path}: {_shown(was)} -> {_shown(now)}"
        said = describe(was, now) if describe else plain
        why = _when(key, old.version, new.version)
        yield UpgradeChange(
            kind, path.pointer, was, now, said, f"{path}: {why}" if describe else why
        )


def effective_value(path: KeyPath, config: Meaning) -> Any:
    """Return the value at a path; a schedule without a peak uses the optimizer's rate."""
    value = config.value(path)
    if value is None and path == MAX_LR:
        return config.value(LEARNING_RATE)
    return value


def _peak(was: Any, now: Any) -> str:
    shown = ["the optimizer's lr" if rate is None else _shown(rate) for rate in (now, was)]
    return f"peak lr is {shown[0]} (was {shown[1]})"


def _clipping(was: Any, now: Any) -> str:
    shown = [f"clipped at norm {_shown(norm)}" if norm else "not clipped" for norm in (now, was)]
    return f"gradients are {shown[0]} (were {shown[1]})"


def _loss_scale(was: Any, now: Any) -> str:
    return f"initial loss scale is 2^{now} (was 2^{was})"


def _overflow(was: Any, now: Any) -> str:
    shown = ["skipped" if checked else "applied" for checked in (now, was)]
    return f"steps with inf or nan gradients are {shown[0]} (were {shown[1]})"


AFFECTS_TRAINING: Mapping[KeyPath, Callable[[Any, Any], str]] = {
    MAX_LR: _peak,
    GRADIENT_CLIPPING: _clipping,
    FP16 / "initial_scale_power": _loss_scale,
    BF16 / "check_grad_overflow": _overflow,
}
"""Defaults whose change affects training results, with the text of the change."""


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "unset"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _in_use(path: KeyPath, config: Meaning) -> bool:
    """Return whether the block of a key is present and enabled."""
    block = path.parent
    if not block:
        return True
    if not config.has_block(block):
        return False
    switch = find(block / "enabled")
    return switch is None or config.value(block / "enabled") is not False


def _when(key: Key, before: Version, after: Version) -> str:
    low, high = sorted((before, after))
    releases = [str(changed) for changed, _ in key.earlier_defaults if low < changed <= high]
    return f"default changed in {' and '.join(releases)}; not set in the file"


def _findings(
    check: Check, before: Version, after: Version, reported: set[str]
) -> Iterator[UpgradeChange]:
    """Yield the findings that apply to only one of the releases, for the target program."""
    from dsconfig.checks.fault import RANGES

    def findings(version: Version) -> dict[tuple[str, str], Any]:
        report = check(version)
        errors = report.errors
        kept = (
            finding for finding in report.diagnostics if finding.code in RANGES or finding in errors
        )
        return {(finding.code, finding.pointer): finding for finding in kept}

    old, new = findings(before), findings(after)
    for finding in (old[key] for key in old if key not in new):
        reason = f"{finding.code} {finding.message}"
        if finding.code in RANGES:
            yield UpgradeChange(ChangeKind.FIXED, finding.pointer, "known bug", "fixed", reason)
        elif finding.effect is Effect.REFUSED and finding.pointer not in reported:
            yield UpgradeChange(ChangeKind.ACCEPTED, finding.pointer, "refused", "accepted", reason)
    for finding in (new[key] for key in new if key not in old):
        reason = f"{finding.code} {finding.message}"
        if finding.code in RANGES:
            yield UpgradeChange(ChangeKind.FAULT, finding.pointer, "correct", "known bug", reason)
        elif finding.pointer not in reported:
            kind = ChangeKind.REFUSED if finding.effect is Effect.REFUSED else ChangeKind.TRAINS
            yield UpgradeChange(kind, finding.pointer, "accepted", str(finding.effect), reason)
