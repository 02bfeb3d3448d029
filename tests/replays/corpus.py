"""Replay public configs and their results in DeepSpeed 0.19.8. PATH: the folder or verdicts.jsonl.

Agreement: a refusal exactly when DeepSpeed refused the file, or could not build the optimizer
or scheduler from it; a finding at each key listed as unknown, removed, deprecated or doubled;
and no error where nothing is listed. ``resolve`` refuses what the parser refused. Templates are
skipped. In files with "auto", batch and Hugging Face keys are filled in first, as in the recording.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dsconfig
from dsconfig import Diagnostic, Effect
from dsconfig.schema.paths import KeyPath
from dsconfig.source.override import with_overrides
from replays import Case
from replays._entry_points import resolve_refuses

LISTS = ("unknown_keys", "removed_keys", "deprecated_keys", "duplicate_keys")
BUILT = ("optimizer", "scheduler")
FILLED: Mapping[str, Any] = {
    "/gradient_clipping": 1.0,
    "/optimizer/params/lr": 1e-4,
    "/optimizer/params/betas": [0.9, 0.999],
    "/optimizer/params/eps": 1e-8,
    "/optimizer/params/weight_decay": 0.01,
    "/scheduler/params/warmup_min_lr": 0,
    "/scheduler/params/warmup_max_lr": 1e-4,
    "/scheduler/params/warmup_num_steps": 100,
    "/scheduler/params/total_num_steps": 1000,
    "/zero_optimization/reduce_bucket_size": 1048576,
    "/zero_optimization/stage3_prefetch_bucket_size": 943718,
    "/zero_optimization/stage3_param_persistence_threshold": 10240,
}


def replay(path: Path) -> Iterator[Case]:
    verdicts = path / "verdicts.jsonl" if path.is_dir() else path
    for line in verdicts.read_text().splitlines():
        row = json.loads(line)
        if not row["template"]:
            yield _case(row, verdicts.parent)


def _case(row: Mapping[str, Any], folder: Path) -> Case:
    document = dsconfig.read(folder / row["file"])
    if row["deepspeed"] == "skipped_auto":
        document = with_overrides(document, list(_filling(document.value, row["world_size"])))
    facts = dsconfig.Facts(world_size=_ranks(document.value, row["world_size"]))
    report = dsconfig.validate(document, facts, runtime="deepspeed", version="0.19.8")
    verdict = row["auto_filled"] or row["deepspeed"]
    refused = verdict == "rejected" or bool(row["late_failure"])
    listed = {name: row[name] for name in (*LISTS, "suspicious", "late_failure") if row[name]}
    expected = {"refused": refused, **listed}
    got, agrees = _compared(report, refused, row)
    resolved = resolve_refuses(document, facts, "0.19.8") == (verdict == "rejected")
    return Case(row["file"], expected, {**got, "resolve": resolved}, agrees and resolved)


def _ranks(config: Any, data_parallel: int | None) -> int | None:
    """Return the number of ranks; rows contain the data-parallel world size of the parser."""
    degree = config.get("sequence_parallel_size", 1) if isinstance(config, dict) else 1
    return data_parallel and data_parallel * degree


def _compared(report: dsconfig.Report, refused: bool, row: Mapping[str, Any]) -> tuple[Any, bool]:
    pointers = {finding.pointer for finding in report.diagnostics}
    expected = [_pointer(path) for name in LISTS for path in row[name]]
    missing = [pointer for pointer in expected if pointer not in pointers]
    clean = not refused and not expected and not row["suspicious"]
    refusals = [finding for finding in report.errors if _refuses(finding)]
    errors = [f"{finding.code} {finding.pointer}" for finding in report.errors]
    agrees = bool(refusals) == refused and not missing and not (clean and errors)
    return {"errors": errors, "missing": missing}, agrees


def _refuses(finding: Diagnostic) -> bool:
    """Return whether the parser rejects it, or optimizer or scheduler cannot be built.

    The recording ran the engine only to build those two.
    """
    if finding.effect is not Effect.REFUSED:
        return False
    return not finding.late or finding.pointer.split("/")[1:2] in ([part] for part in BUILT)


def _pointer(path: str) -> str:
    """Return the pointer of a recorded key; ``zero_optimization(bool)`` is the block itself."""
    return KeyPath.parse(path.removesuffix("(bool)")).pointer


def _filling(config: Any, world_size: int | None) -> Iterator[str]:
    """Return overrides for each "auto" that a Hugging Face program fills in."""
    from dsconfig.source.pointer import lookup

    for pointer, value in FILLED.items():
        if lookup(config, pointer) == "auto":
            yield f"{pointer}={json.dumps(value)}"
    fp16, bf16 = (lookup(config, f"/{name}/enabled") for name in ("fp16", "bf16"))
    if fp16 == "auto":
        yield f"/fp16/enabled={json.dumps(bf16 is not True)}"
    if bf16 == "auto":
        yield f"/bf16/enabled={json.dumps(fp16 not in ('auto', True))}"
    yield from _batch(config, world_size or 1)


def _batch(config: Any, world_size: int) -> Iterator[str]:
    train, micro, steps = (
        config.get(key)
        for key in (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        )
    )
    known = isinstance(train, int)
    if steps == "auto":
        steps = train // world_size // micro if known and isinstance(micro, int) else 1
        yield f"/gradient_accumulation_steps={steps}"
    if micro == "auto":
        micro = train // world_size // (steps or 1) if known else 1
        yield f"/train_micro_batch_size_per_gpu={micro}"
    if train == "auto":
        yield f"/train_batch_size={(micro or 1) * (steps or 1) * world_size}"
