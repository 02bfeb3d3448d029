"""Where DeepSpeed stops: the rules with the effect ``refused``, in the order in which they fire."""

from typing import Any, NamedTuple

from dsconfig.checks.context import Context
from dsconfig.checks.rule import (
    AT_INIT,
    AT_STEP,
    AT_THE_END,
    AT_THE_START,
    REJECTED,
    Finding,
    Phase,
    Rule,
)
from dsconfig.checks.runner import diagnostic_of, found_in
from dsconfig.facts import Facts
from dsconfig.report import Effect
from dsconfig.runtimes import deepspeed
from dsconfig.runtimes.base import AUTO, Runtime
from dsconfig.runtimes.config_view import MONITORS
from dsconfig.runtimes.reading import Outcome
from dsconfig.runtimes.replay import Failure, Replay
from dsconfig.schema.paths import KeyPath
from dsconfig.source import Document, reading

_OTHER_KEYS, _BATCH = "other", "batch"
ORDER = (
    AT_THE_START,
    "communication_data_type",
    "seq_parallel_communication_data_type",
    "gradient_allreduce_op",
    "zero_optimization",
    "activation_checkpointing comms_logger",
    " ".join(MONITORS),
    "fp16",
    "bf16 bfloat16",
    "torch_autocast optimizer scheduler",
    "wall_clock_breakdown flops_profiler",
    "autotuning hybrid_engine",
    "pipeline",
    "data_efficiency",
    "checkpoint",
    "data_types",
    "aio weight_quantization",
    "compile",
    "timers",
    "tensor_parallel",
    "expert_parallel",
    _OTHER_KEYS,
    _BATCH,
    AT_THE_END,
)
"""Top-level keys in the order in which DeepSpeed parses them; it reports only the first error."""
_STEPS = {key: step for step, keys in enumerate(ORDER) for key in keys.split()}


class _Rank(NamedTuple):
    """Sorts refusals: phase, step of the parser, and within it values, blocks, conditions."""

    phase: Phase
    step: int
    kind: int


_VALUE, _BLOCK, _CONDITION = range(3)


def replayed(document: Document, config: dict[str, Any], facts: Facts, runtime: Runtime) -> Replay:
    """Return what a program makes of a config, and where it or DeepSpeed after it stops.

    ``config`` is a private copy of the values of the document, as the program reads it. Raises
    MissingFact if the program needs a value that ``facts`` do not have.
    """
    replay = runtime.replay(config, facts)
    if replay.failure is not None or not runtime.starts_deepspeed:
        return replay
    if runtime.hands_over:
        handed = reading.document_from_dict(replay.config, document.name)
        program = deepspeed.DeepSpeed(runtime.version)
        replay.failure_after = failure_of(handed, facts, program)
        return replay
    replay.failure = failure_of(document, facts, runtime)
    if replay.failure is None or replay.failure.late:
        runtime.read(replay, facts)
    return replay


def failure_of(document: Document, facts: Facts, runtime: Runtime) -> Failure | None:
    """Return the first error of DeepSpeed, or None if it trains."""
    context = Context(document, facts, (runtime,), runtime.version)
    refused: list[tuple[_Rank, Rule, Finding]] = []
    for rule, finding in found_in(context):
        diagnostic = diagnostic_of(rule, finding, context)
        if diagnostic is not None and diagnostic.effect is Effect.REFUSED:
            refused.append((_rank(context, rule, finding), rule, finding))
    if not refused:
        return None
    rank, rule, finding = min(refused, key=lambda each: each[0])
    if rank.phase is Phase.PARSE:
        if rank.kind == _BLOCK:
            return _block_failure(context, rank.step)
        if rank.step == _STEPS[_BATCH]:
            failure = deepspeed.batch_failure(context.config, facts, mpu=runtime.mpu)
            if failure is not None:
                return failure
    return Failure(
        finding.exception or rule.stop.exception or _exception(context, finding.path, rank.phase),
        _problem(finding.message),
        tuple(path for path in finding.names or (finding.path,) if path),
        late=rank.phase > Phase.PARSE,
    )


def _problem(message: str) -> str:
    """Return the message without its consequence."""
    problem, _, end = message.rpartition(": ")
    return problem if end in (AT_INIT, AT_STEP, REJECTED) else message


def _rank(context: Context, rule: Rule, finding: Finding) -> _Rank:
    phase = rule.stop.phase if finding.phase is None else finding.phase
    if phase is not Phase.PARSE:
        return _Rank(phase, 0, 0)
    root = rule.stop.parsed_with or (finding.path[0] if finding.path else _BATCH)
    if root in deepspeed.BATCH_KEYS:
        root = _BATCH
    entry = context.reading.at(finding.path)
    kind = _CONDITION
    if not (rule.stop.exception or finding.exception):
        if entry is not None and entry.refused:
            kind = _BLOCK
        elif finding.path in context.failed_check:
            kind = _VALUE
    return _Rank(phase, _STEPS.get(root, _STEPS[_OTHER_KEYS]), kind)


def _block_failure(context: Context, step: int) -> Failure:
    """Return the error of the models that are validated in a step: it names every invalid key."""
    entries = [
        entry
        for entry in context.reading.entries.values()
        if entry.refused and _STEPS.get(entry.path[0], _STEPS[_OTHER_KEYS]) == step
    ]
    misfit = next((entry for entry in entries if entry.outcome is Outcome.NOT_A_BLOCK), None)
    if misfit is not None:
        # Blocks in another model, and the monitors, are fields; the others are unpacked.
        unpacked = len(misfit.path) == 1 and misfit.path.name not in MONITORS
        exception = "TypeError" if unpacked else "ValidationError"
        return Failure(exception, f"{misfit.path} must be an object", (misfit.path,))
    paths = tuple(entry.path for entry in entries)
    message = f"DeepSpeed's model rejects {', '.join(map(str, paths))}"
    return Failure("ValidationError", message, paths)


def _exception(context: Context, path: KeyPath, phase: Phase) -> str:
    """Return the class raised for a value that DeepSpeed reads without a model, else nothing.

    It is the plain Python error of a method or an operator on the wrong type.
    """
    dotted, value = path.dotted, context.get(*path)
    if phase is not Phase.PARSE and value != AUTO and path not in context.failed_check:
        return ""
    if isinstance(value, str) and dotted in _STRING_METHODS:
        return _STRING_METHODS[dotted]
    if value == 0 and dotted == "steps_per_print":
        return "ZeroDivisionError"
    is_argument = path[1:2] == ("params",) and len(path) > 2
    return _EXCEPTIONS.get(dotted, "TypeError" if is_argument else "AttributeError")


_STRING_METHODS = {
    "communication_data_type": "ValueError",
    "seq_parallel_communication_data_type": "ValueError",
    "checkpoint.tag_validation": "DeepSpeedConfigError",
    "optimizer.type": "AssertionError",
}
"""Keys on whose value a string method is called first."""
_EXCEPTIONS = {
    "gradient_allreduce_op": "ValueError",
    "scheduler.type": "AssertionError",
    "scheduler.params.warmup_num_steps": "ValueError",
    "torch_autocast.dtype": "ValueError",
    "data_types.keep_in_fp32_modules": "DeepSpeedConfigError",
    "checkpoint.parallel_write.pipeline_stage": "DeepSpeedConfigError",
    **dict.fromkeys(
        ("data_types.grad_accum_dtype", "data_types.param_dtype", "data_types.buffer_dtype"),
        "ValueError",
    ),
    **dict.fromkeys(
        (
            "wall_clock_breakdown",
            "flops_profiler.enabled",
            "vocabulary_size",
            "timers",
            "gradient_clipping",
            "steps_per_print",
            *deepspeed.BATCH_KEYS,
        ),
        "TypeError",
    ),
}
