"""Rules for values of a wrong type or size."""

import json
import math
from collections.abc import Iterator
from typing import Any

from dsconfig import batch
from dsconfig.checks.context import Context, key_at
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import AT_INIT, AT_STEP, Finding, Phase, reaches_deepspeed
from dsconfig.report import Effect, Fix
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.reading import Outcome
from dsconfig.runtimes.reading import expected as expected_by_model
from dsconfig.schema import ErrorKind, SchemaError
from dsconfig.schema.paths import REDUCE_BUCKET, ROOT, ZERO, KeyPath
from dsconfig.source.edit import as_fix, delete_entry, replace_value
from dsconfig.source.pointer import split

VALUE_KINDS = (ErrorKind.TYPE, ErrorKind.BOUND, ErrorKind.CHOICE)


CHECKED_ELSEWHERE = frozenset(
    {
        ("fp16", "loss_scale_window"),
        ("fp16", "min_loss_scale"),
        ("fp16", "hysteresis"),
        ("optimizer", "type"),
        ("sequence_parallel_size",),
        ("data_parallel_size",),
        ("zero_optimization", "zenflow", "select_interval"),
        ("zero_optimization", "zenflow", "update_interval"),
    }
)
"""Values that have their own rule."""


BLOCK = "an object"


def to_write(expected: str) -> str:
    """Return the help for a value of a wrong type."""
    if expected in (BLOCK, f"{BLOCK} "):
        return f'write {BLOCK}, such as {{"enabled": true}}'
    return f"write {expected}"


def shown(value: Any) -> str:
    """Return a value as JSON, truncated if long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


def _is_covered(config: Context, path: KeyPath) -> bool:
    """Return whether these rules check a path: not batch values, optimizer and scheduler."""
    if path in (("optimizer",), ("scheduler",), ("optimizer", "type")):
        return True
    if path[0] in ("optimizer", "scheduler") or _is_removed(path):
        return False
    return not (path[0] in batch.KEYS and isinstance(config.get(*path), (int, float)))


def _is_removed(path: KeyPath) -> bool:
    """Return whether a path is a feature that DeepSpeed removed, or inside one."""
    feature = key_at(path[:1])
    return feature is not None and feature.refused_from is not None


def _faults(config: Context) -> Iterator[tuple[KeyPath, SchemaError]]:
    for error in config.schema_errors:
        path = split(error.pointer)
        if error.kind in VALUE_KINDS and path and _is_covered(config, path):
            yield path, error


@refusal("DSC031")
def invalid_value(config: Context) -> Iterator[Finding]:
    """Invalid value

    DeepSpeed rejects a value of a wrong type, outside its limits, or not among its choices. It
    checks most values when it reads the config, and some (`gradient_clipping`, `steps_per_print`,
    names in `data_types`) only at engine initialization or at the first step.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 4}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    """
    expected = {path: error.expected for path, error in _faults(config)}
    reported: set[KeyPath] = set()
    for path, entry in config.reading.entries.items():
        if entry.outcome in (Outcome.BAD_TYPE, Outcome.OUT_OF_BOUNDS, Outcome.NOT_A_BLOCK):
            reported.add(path)
            wanted = expected.get(path, BLOCK)
            if entry.field is not None:  # use the limits of the release
                limits = entry.outcome is Outcome.OUT_OF_BOUNDS
                wanted = expected_by_model(entry.field, config.version, limits=limits)
            yield _refusal(config, path, wanted)
    for path, wanted in config.failed_check.items():
        is_covered = _is_covered(config, path) or _is_removed(path)
        unused = path == ("data_types", "buffer_dtype") and not (config.fp16 or config.bf16)
        if path not in reported and config.get(*path) != AUTO and is_covered and not unused:
            yield _refusal(config, path, wanted.expected, late=wanted.late)


def _refusal(config: Context, path: KeyPath, wanted: str, *, late: bool = False) -> Finding:
    value = config.get(*path)
    program = f"DeepSpeed {config.release}"
    consequence = (
        f"{program} fails at engine initialization or at the first step"
        if late
        else f"{program} rejects the config"
    )
    null_block = value is None and wanted == BLOCK
    fix = as_fix(delete_entry(config.document, path.pointer)) if null_block else None
    return Finding(
        path=path,
        message=f"{path} is {shown(value)}, but must be {wanted}: {consequence}",
        help="delete the key" if null_block else to_write(wanted),
        phase=Phase.STEP if late else None,
        fix=fix or _literal(config, path, value),
    )


def _literal(config: Context, path: KeyPath, value: Any) -> Fix | None:
    """Return the fix for a string that spells a number or boolean, else None."""
    meant = literal_of(value)
    if meant is None:
        return None
    return as_fix(replace_value(config.document, path.pointer, meant), safe=True)


def wrong_argument(
    config: Context, error: SchemaError, phase: Phase | None, exception: str | None = None
) -> Finding:
    """Return the finding for an invalid optimizer or scheduler argument.

    ``phase``: when its use fails; None: DeepSpeed does not check it.
    """
    meant, path = literal_of(error.value), split(error.pointer)
    edits = replace_value(config.document, error.pointer, meant) if meant is not None else ()
    return Finding(
        path=path,
        message=f"{path} is {shown(error.value)}, but must be {error.expected}: "
        + _CONSEQUENCES.get(phase, AT_INIT),
        help=to_write(error.expected),
        effect=None if phase else Effect.ALTERED,
        phase=phase,
        exception=exception,
        fix=as_fix(edits),
    )


_CONSEQUENCES = {
    None: "DeepSpeed does not check it and uses it",
    Phase.STEP: AT_STEP,
}


def literal_of(value: Any) -> Any:
    """Return the number or boolean that a string spells, or None."""
    if not isinstance(value, str):
        return None
    word = value.strip().lower()
    if word in ("true", "false"):
        return word == "true"
    try:
        number = float(word)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else number


@rule("DSC032", Effect.ALTERED, also=(Effect.REFUSED, Effect.NOTE))
def unchecked_value(config: Context) -> Iterator[Finding]:
    """Invalid value that DeepSpeed does not check

    Any non-empty string counts as true for a boolean key, even "false". Numbers outside the valid
    range are used unchanged.

    bad: {"train_batch_size": 8, "prescale_gradients": "false"}
    good: {"train_batch_size": 8, "prescale_gradients": false}
    """
    for path, error in _faults(config):
        if _is_reported(config, path):
            continue
        value, is_switch = error.value, "true or false" in error.expected
        # DeepSpeed and dsengine both accept 0 and 1 as false and true.
        is_boolean = type(value) is int and value in (0, 1) and is_switch
        is_text = error.kind is ErrorKind.TYPE and isinstance(value, str) and is_switch
        consequence = "a non-empty string counts as true" if is_text else "uses it"
        problem = f"{path} is {shown(value)}, but must be {error.expected}: "
        yield Finding(
            path=path,
            message=f"{problem}DeepSpeed does not check it"
            + (": " if is_text else " and ")
            + consequence,
            help=to_write(error.expected),
            effect=Effect.NOTE if is_text and str(value).lower() == "true" else None,
            dsengine_message=None if is_boolean else f"{problem}dsengine rejects the config",
            fix=_literal(config, path, value),
        )


def _is_reported(config: Context, path: KeyPath) -> bool:
    """Return whether another rule reports the value."""
    entry = config.reading.at(path) or config.reading.at(path.parent)
    if path == ("fp16", "min_loss_scale") and 0 < (config.number(*path) or 0) < math.inf:
        return True  # DSC031 if DeepSpeed rejects a fraction; dsengine accepts one
    if entry is not None and (entry.refused or entry.outcome is Outcome.CONVERTED):
        return config.runs_deepspeed or not entry.refused
    if path[0] == "zero_optimization" and len(path) == 1:
        return True
    if path == ("steps_per_print",) and config.get(*path) == math.inf:
        return True  # as accelerate writes it: no step is a multiple, so nothing is printed
    known, is_null = key_at(path), config.get(*path) is None
    if path in CHECKED_ELSEWHERE or (is_null and path in (("bf16",), ("aio",))):
        return True
    if is_null and known is not None and known.default is None:
        return True  # null is the default of the key
    if path[0] == "expert_parallel" and config.switch("expert_parallel", "enabled"):
        return True
    # DSC031 reports values and list entries that DeepSpeed checks itself.
    is_unmet = config.runs_deepspeed and not config.failed_check.keys().isdisjoint(
        {path, path[:-1]}
    )
    # DeepSpeed accepts a string instead of a list of one there.
    is_leaf = path[:2] == ("zero_optimization", "leaf_module")
    return is_unmet or (is_leaf and isinstance(config.get(*path), str))


@rule("DSC033", Effect.NOTE, also=(Effect.ALTERED,))
def converted_value(config: Context) -> Iterator[Finding]:
    """Value of another type that DeepSpeed converts

    "2" becomes 2, "yes" and 1 become true, as intended. A boolean instead of a number becomes 0 or
    1, which is rarely intended (`altered`). Other programs that read the same file do not convert;
    transformers compares values with its own arguments.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": "2"}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    for path, entry in config.reading.entries.items():
        if entry.outcome is not Outcome.CONVERTED or entry.field is None:
            continue
        value = config.get(*path)
        odd = isinstance(value, bool) and not isinstance(entry.value, bool)
        edits = replace_value(config.document, path.pointer, entry.value)
        yield Finding(
            path=path,
            message=f"{path} is {shown(value)}: DeepSpeed converts it to {shown(entry.value)}",
            help=f"write {entry.field.kind.strip()}",
            effect=Effect.ALTERED if odd else None,
            fix=as_fix(edits, safe=not odd),
        )


@rule("DSC034", Effect.INERT, also=(Effect.NOTE,), triggers="bf16 aio")
def null_block(config: Context) -> Iterator[Finding]:
    """Block is null

    DeepSpeed treats it as absent: null for `bf16` trains in fp32.

    bad: {"train_batch_size": 8, "bf16": null}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}}
    """
    for name, effect in (("bf16", None), ("aio", Effect.NOTE)):
        if config.has(name) and config.get(name) is None and (name,) not in config.failed_check:
            yield Finding(
                path=ROOT / name,
                message=f"{name} is null: DeepSpeed treats it as absent",
                help=f'delete it, or write "{name}": {{...}}',
                effect=effect,
                fix=as_fix(delete_entry(config.document, f"/{name}")),
            )


@rule(
    "DSC035", Effect.DEPRECATED, also=(Effect.INERT,), triggers="zero_optimization allgather_size"
)
def boolean_zero_optimization(config: Context) -> Iterator[Finding]:
    """`zero_optimization` is a boolean

    This form was deprecated in 2020. true is stage 1 with `allgather_size` as the bucket size. With
    a `zero_optimization` object, `allgather_size` has no effect (`inert`).

    bad: {"train_batch_size": 8, "zero_optimization": true, "fp16": {"enabled": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "fp16": {"enabled": true}}
    """
    value = config.get("zero_optimization")
    if isinstance(value, bool):
        edits = replace_value(config.document, "/zero_optimization", {"stage": int(value)})
        yield Finding(
            path=ZERO,
            message=f"zero_optimization is {shown(value)}, a deprecated form of stage {int(value)}",
            help=f'write "zero_optimization": {{"stage": {int(value)}}}',
            fix=as_fix(edits),
        )
    elif config.has("allgather_size"):
        yield Finding(
            path=ROOT / "allgather_size",
            message="allgather_size is read only with zero_optimization: true",
            help='write "allgather_bucket_size" in zero_optimization',
            effect=Effect.INERT,
            on_key=True,
        )


@rule(
    "DSC036",
    Effect.REFUSED,
    also=(Effect.NOTE,),
    triggers="zero_optimization",
    stops="step TypeError",
)
def number_too_large(config: Context) -> Iterator[Finding]:
    """Size above 2^63 - 1

    DeepSpeed accepts it. It allocates `reduce_bucket_size`, which makes the first step fail; other
    sizes are only compared and mean no limit.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size":
        1000000000000000000000000000000}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size":
        500000000}}
    """
    for path in config.paths:
        value = config.get(*path)
        if isinstance(value, int) and abs(value) > 2**63 - 1:
            allocated = path == REDUCE_BUCKET and config.stage > 0
            yield Finding(
                path=path,
                message=f"{path} has {len(str(abs(value)))} digits: "
                + (
                    "DeepSpeed fails when it allocates the bucket"
                    if allocated
                    else "DeepSpeed treats it as no limit"
                ),
                help="write a number of elements, such as 500000000",
                effect=None if allocated else Effect.NOTE,
                applies_to=reaches_deepspeed if allocated else None,
            )
