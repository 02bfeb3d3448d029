"""Replay of ``DeepSpeedConfig``: the order in which it parses a config, and where it stops."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dsconfig import batch
from dsconfig.facts import Facts
from dsconfig.runtimes import reading
from dsconfig.runtimes.base import AUTO, Source
from dsconfig.runtimes.behavior import deepspeed_batch
from dsconfig.runtimes.behavior.replay import Replay, ReplayStop, errors_at
from dsconfig.runtimes.conditions import AT_THE_END, violations
from dsconfig.runtimes.read_config import MONITORS, ReadConfig
from dsconfig.schema.catalogue import blocks_in
from dsconfig.schema.optimizers import optimizer_type
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.pointer import ABSENT, is_block, value_at


def parse(outcome: Replay, facts: Facts, ranks: int | None, version: Version) -> None:
    """Parse ``outcome.config``, in place. ``ranks`` is an mpu's data-parallel size, or None."""
    config = outcome.config
    read = ReadConfig(config, version, facts)
    for path, key in read.removed.items():
        if key.refused_from is not None and version >= key.refused_from:
            dotted = ".".join(path)
            raise ReplayStop("DeepSpeedConfigError", f"{dotted} has been removed", dotted)
    size: int | float = ranks if ranks is not None else facts.world_size or 1
    if ranks is None and "sequence_parallel_size" in config:
        with errors_at("sequence_parallel_size"):
            size = batch.ranks_sharing(size, config["sequence_parallel_size"])
    for step in ORDER:
        _stop_at_failed_checks(read, step.checks)
        _typed(outcome, read.reading, step.by_model)
        _stop_at_violations(read, (*step.checks, *step.by_model))
        if step.then is not None:
            step.then(outcome, version)
    _stop_at_failed_checks(read, None)
    _typed(outcome, read.reading, None)
    _stop_at_violations(read, None)
    deepspeed_batch.solve(outcome, size)
    _stop_at_violations(read, (AT_THE_END,))
    _max_grad_norm(config)


def _stop_at_violations(read: ReadConfig, roots: tuple[str, ...] | None) -> None:
    """Stop at violated conditions of the given roots (None: all)."""
    for violation in violations(read, roots):
        raise ReplayStop(
            violation.exception, violation.message, *(".".join(path) for path in violation.paths)
        )


def _stop_at_failed_checks(read: ReadConfig, roots: tuple[str, ...] | None) -> None:
    """Stop at failed checks of keys below the given roots (None: all)."""
    for path, check in read.failed_check.items():
        if path[0] in _REPLAYED or (roots is not None and path[0] not in roots):
            continue
        if not check.late:
            dotted, value = ".".join(path), read.get(*path)
            message = f"{dotted} is {value!r}; DeepSpeed requires {check.expected}"
            # The plain Python error of a method or an operator on the wrong type.
            error = _OTHER_ERRORS.get(dotted, "AttributeError")
            if isinstance(value, str):
                error = _STRING_METHODS.get(dotted, error)
            raise ReplayStop(error, message, dotted)


_REPLAYED = (*batch.KEYS, "sequence_parallel_size")
"""Keys whose arithmetic is replayed as is, with its errors."""


_STRING_METHODS = {
    "communication_data_type": "ValueError",
    "seq_parallel_communication_data_type": "ValueError",
    "checkpoint.tag_validation": "DeepSpeedConfigError",
}
"""Keys on whose value a string method is called first."""
_OTHER_ERRORS = {
    "gradient_allreduce_op": "ValueError",
    "torch_autocast.dtype": "ValueError",
    "data_types.keep_in_fp32_modules": "DeepSpeedConfigError",
    "checkpoint.parallel_write.pipeline_stage": "DeepSpeedConfigError",
    "wall_clock_breakdown": "TypeError",
    "flops_profiler.enabled": "TypeError",
    "vocabulary_size": "TypeError",
    "timers": "TypeError",
}


def _typed(outcome: Replay, found: reading.Reading, roots: tuple[str, ...] | None) -> None:
    """Refuse, convert and drop values as DeepSpeed's models do, in place."""
    entries = [e for e in found.entries.values() if roots is None or e.path[0] in roots]
    misfit = next((e for e in entries if e.outcome is reading.Outcome.NOT_A_BLOCK), None)
    if misfit is not None:
        dotted = ".".join(misfit.path)
        # Blocks in another model, and the monitors, are fields; the others are unpacked.
        unpacked = len(misfit.path) == 1 and dotted not in MONITORS
        kind = "TypeError" if unpacked else "ValidationError"
        raise ReplayStop(kind, f"{dotted} must be an object", dotted)
    refused = [entry for entry in entries if entry.refused]
    if refused:
        paths = tuple(".".join(entry.path) for entry in refused)
        message = f"DeepSpeed's model rejects {', '.join(paths)}"
        raise ReplayStop("ValidationError", message, *paths)
    for path, values in found.values.items():
        if roots is None or path[0] in roots:
            _convert(outcome, path, values)
    for entry in entries:
        if entry.outcome is reading.Outcome.DROPPED:
            dotted = ".".join(entry.path)
            _delete(outcome.config, entry.path)
            outcome.remark(
                "DSC750",
                dotted,
                f'DeepSpeed silently drops "auto" at {dotted} and uses its default',
                "write the value, or run dsconfig resolve --runtime dsengine first",
            )
    for block, content in list(blocks_in(outcome.config)):
        if content == AUTO and block.nested and (roots is None or block.path[0] in roots):
            message = '"auto" instead of a block counts as no block'
            outcome.record(".".join(block.path), message, Source.DEFAULT)
            _delete(outcome.config, block.path)


def _convert(outcome: Replay, path: tuple[str, ...], values: Mapping[str, Any]) -> None:
    """Replace values by those that the models convert to: ``"2"`` and 2.0 become 2."""
    block, place = reading.typed_block(path), value_at(outcome.config, path)
    if not is_block(place) or block is None or not block.owner.history.is_closed_at(NEWEST):
        return
    for key, written in list(place.items()):
        known = reading.field_in(block, key)
        if known is None or known.model_name not in values:
            continue
        value = values[known.model_name]
        if type(value) is not type(written):
            place[key] = value
            rule = "converted by DeepSpeed's model of the block"
            outcome.record(".".join((*path, key)), rule, Source.CONFIG)


def _delete(config: dict[str, Any], path: tuple[str, ...]) -> None:
    place = value_at(config, path[:-1])
    if is_block(place):
        place.pop(path[-1], None)


def _optimizer_and_scheduler(outcome: Replay, version: Version) -> None:
    config = outcome.config
    for block in ("optimizer", "scheduler"):
        if block not in config:
            continue
        with errors_at(block):
            name = config[block]["type"] if "type" in config[block].keys() else None  # noqa: SIM118
        if block == "optimizer" and name is not None:
            with errors_at("optimizer.type"):
                own = optimizer_type(name.lower())
                if own is not None and own.is_own_at(version):
                    config[block]["type"] = name.lower()


def _clock(outcome: Replay, version: Version) -> None:
    """``wall_clock_breakdown | flops_profiler.enabled``."""
    config = outcome.config
    profiler = config.get("flops_profiler", {})
    with errors_at("flops_profiler"):
        enabled = profiler.get("enabled", False)
    written = [
        path
        for path in ("wall_clock_breakdown", "flops_profiler.enabled")
        if not isinstance(value_at(config, path), bool) and value_at(config, path) is not ABSENT
    ]
    with errors_at(*written):
        _ = config.get("wall_clock_breakdown", False) | enabled


def _max_grad_norm(config: dict[str, Any]) -> None:
    """Replay the comparison of ``optimizer.params.max_grad_norm`` with 0."""
    params = value_at(config, ("optimizer", "params"))
    named = value_at(config, ("optimizer", "type")) not in (ABSENT, None)
    if named and params is not ABSENT and params is not None:
        with errors_at("optimizer.params"):
            present = "max_grad_norm" in params.keys()  # noqa: SIM118
        if present:
            with errors_at("optimizer.params.max_grad_norm"):
                _ = params["max_grad_norm"] > 0


class ParserStep(NamedTuple):
    """A step of the parser: explicitly read keys, blocks with a model, and an own check."""

    checks: tuple[str, ...] = ()
    by_model: tuple[str, ...] = ()
    then: Callable[[Replay, Version], None] | None = None


ORDER = (
    ParserStep(checks=("communication_data_type",)),
    ParserStep(checks=("seq_parallel_communication_data_type",)),
    ParserStep(checks=("gradient_allreduce_op",)),
    ParserStep(by_model=("zero_optimization",)),
    ParserStep(checks=("activation_checkpointing",), by_model=("comms_logger",)),
    ParserStep(by_model=MONITORS),
    ParserStep(by_model=("fp16",)),
    ParserStep(by_model=("bf16", "bfloat16")),
    ParserStep(checks=("torch_autocast",), then=_optimizer_and_scheduler),
    ParserStep(then=_clock),
    ParserStep(checks=("autotuning",), by_model=("hybrid_engine",)),
    ParserStep(checks=("pipeline",)),
    ParserStep(checks=("data_efficiency",)),
    ParserStep(checks=("checkpoint",)),
    ParserStep(checks=("data_types",)),
    ParserStep(checks=("aio",), by_model=("weight_quantization",)),
    ParserStep(by_model=("compile",)),
    ParserStep(checks=("timers",), by_model=("timers",)),
    ParserStep(by_model=("tensor_parallel",)),
    ParserStep(checks=("expert_parallel",)),
)
"""Parsing order of DeepSpeedConfig, which reports only the first error."""
