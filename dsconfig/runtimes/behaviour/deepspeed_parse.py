"""``DeepSpeedConfig``: the order in which it reads a config, and where it stops."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from dsconfig.runtimes import reading
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.behaviour import deepspeed_batch
from dsconfig.runtimes.behaviour.outcome import Outcome, Stops, about
from dsconfig.runtimes.demands import demands, unmet
from dsconfig.runtimes.typed_blocks import BLOCK_AT
from dsconfig.schema.version import NEWEST, Version

REMOVED = (
    "nebula",
    "compression_training",
    "amp",
    "quantize_training",
    "sparse_gradients",
    "eigenvalue",
    "sparse_attention",
    "elasticity",
    "graph_harvesting",
    "curriculum_learning",
    "progressive_layer_drop",
)
_REMOVED_FROM_ZERO = ("mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param")
REMOVAL = Version(0, 19, 6)
"""The first release that refuses them by name."""
OPTIMIZERS = ("adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon")
"""Types DeepSpeed builds itself; it reads their names in lower case."""
MONITORS = ("tensorboard", "wandb", "comet", "csv_monitor")


def parse(outcome: Outcome, world_size: int, ranks: int | None, version: Version) -> None:
    """Read ``outcome.config``, in place. ``ranks`` is an mpu's data-parallel size, or None."""
    config = outcome.config
    _refuse_removed(config, version)
    size: int | float = ranks if ranks is not None else world_size
    if ranks is None and "sequence_parallel_size" in config:
        with about("sequence_parallel_size"):
            size = world_size / config["sequence_parallel_size"]
    # Of the two spellings the new one is read where it stands, and the old one not at all.
    unread = {"bfloat16"} if config.get("bf16") is not None else set[str]()
    read = {key: value for key, value in config.items() if key not in unread}
    found = reading.read(read, version)
    for step in ORDER:
        _refuse_unmet(config, version, step.by_hand)
        _typed(outcome, found, step.by_model)
        if step.then is not None:
            step.then(outcome)
    _refuse_unmet(config, version, None)
    _typed(outcome, found, None)
    deepspeed_batch.solve(outcome, size)
    _sanity(config)


def _refuse_removed(config: dict[str, Any], version: Version) -> None:
    if version < REMOVAL:
        return
    for key in REMOVED:
        if key in config:
            raise Stops("DeepSpeedConfigError", f"{key} has been removed", key)
    zero = config.get("zero_optimization")
    if isinstance(zero, dict):
        for key in _REMOVED_FROM_ZERO:
            if key in zero:
                path = f"zero_optimization.{key}"
                raise Stops("DeepSpeedConfigError", f"{path} has been removed", path)


def _refuse_unmet(config: dict[str, Any], version: Version, roots: tuple[str, ...] | None) -> None:
    """Demands on keys that are read by hand, below the given roots (None: all of them)."""
    for path in demands():
        if path[0] in _REPLAYED or (roots is not None and path[0] not in roots):
            continue
        value = reading_at(config, path)
        if value is reading.ABSENT:
            continue
        demand = unmet(path, value, version)
        if demand is not None and not demand.late:
            dotted = ".".join(path)
            said = f"{dotted} is {value!r}; DeepSpeed takes {demand.expected}"
            raise Stops(_class_of(dotted, value), said, dotted)


_REPLAYED = (*deepspeed_batch.TRIPLE, "sequence_parallel_size")
"""Keys whose arithmetic is replayed as it is, with the errors it brings."""


def _class_of(dotted: str, value: Any) -> str:
    """The exception behind a demand: bare where a method or operator meets a wrong type."""
    if dotted in _METHODS:
        return _METHODS[dotted] if isinstance(value, str) else "AttributeError"
    return _ALWAYS.get(dotted, "AttributeError")


_METHODS = {
    "communication_data_type": "ValueError",
    "seq_parallel_communication_data_type": "ValueError",
    "checkpoint.tag_validation": "DeepSpeedConfigError",
}
"""Values on which a method of a text is called first."""
_ALWAYS = {
    "gradient_allreduce_op": "ValueError",
    "torch_autocast.dtype": "ValueError",
    "data_types.keep_in_fp32_modules": "DeepSpeedConfigError",
    "checkpoint.parallel_write.pipeline_stage": "DeepSpeedConfigError",
    "wall_clock_breakdown": "TypeError",
    "flops_profiler.enabled": "TypeError",
    "vocabulary_size": "TypeError",
    "timers": "TypeError",
}


def reading_at(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = config
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return reading.ABSENT
        value = cast(dict[str, Any], value)[part]
    return value


def _typed(outcome: Outcome, found: reading.Reading, roots: tuple[str, ...] | None) -> None:
    """Refuse, convert and drop as DeepSpeed's models do, in place, below the given roots."""
    entries = [e for e in found.entries.values() if roots is None or e.path[0] in roots]
    block = next((e for e in entries if e.outcome is reading.Outcome.NOT_A_BLOCK), None)
    if block is not None:
        dotted = ".".join(block.path)
        # Blocks inside another model, and the monitors, are fields; the others are unpacked.
        unpacked = len(block.path) == 1 and dotted not in MONITORS
        kind = "TypeError" if unpacked else "ValidationError"
        raise Stops(kind, f"{dotted} must be a block of keys", dotted)
    refused = [entry for entry in entries if entry.refused]
    if refused:
        paths = tuple(".".join(entry.path) for entry in refused)
        said = f"DeepSpeed's model of the block refuses {', '.join(paths)}"
        raise Stops("ValidationError", said, *paths)
    for path, values in found.values.items():
        if roots is None or path[0] in roots:
            _convert(outcome, path, values)
    for entry in entries:
        if entry.outcome is reading.Outcome.DROPPED:
            _drop(outcome, entry.path)
    for name in _absent_blocks(outcome.config, roots):
        outcome.wrote(name, '"auto" in place of the block counts as no block')
        _delete(outcome.config, tuple(name.split(".")))


def _convert(outcome: Outcome, path: tuple[str, ...], values: Mapping[str, Any]) -> None:
    """Put in place what the models of a block made of the values: ``"2"`` and 2.0 become 2."""
    block, place = BLOCK_AT[path], reading_at(outcome.config, path)
    if not isinstance(place, dict) or not block.is_strict(NEWEST):
        return
    held = cast(dict[str, Any], place)
    for key, written in list(held.items()):
        known = block.names.get(key)
        if known is None or known.name not in values:
            continue
        value = values[known.name]
        if type(value) is not type(written):
            held[key] = value
            outcome.wrote(".".join((*path, key)), "converted by DeepSpeed's model of the block")


def _drop(outcome: Outcome, path: tuple[str, ...]) -> None:
    dotted = ".".join(path)
    _delete(outcome.config, path)
    outcome.remark(
        "DSC750",
        "auto-dropped",
        dotted,
        f'DeepSpeed drops "auto" at {dotted} without a word and goes on with its default',
        "write the value, or resolve the file with dsconfig resolve first",
    )


def _absent_blocks(config: dict[str, Any], roots: tuple[str, ...] | None) -> Iterator[str]:
    for path in (
        ("zero_optimization", "offload_optimizer"),
        ("zero_optimization", "offload_param"),
        ("zero_optimization", "zenflow"),
        ("zero_optimization", "leaf_module"),
        ("tensorboard",),
        ("wandb",),
        ("comet",),
        ("csv_monitor",),
    ):
        if (roots is None or path[0] in roots) and reading_at(config, path) == AUTO:
            yield ".".join(path)


def _delete(config: dict[str, Any], path: tuple[str, ...]) -> None:
    *outer, name = path
    place = reading_at(config, tuple(outer))
    if isinstance(place, dict):
        cast(dict[str, Any], place).pop(name, None)


def _half(config: dict[str, Any], block: str) -> bool:
    return bool(reading_at(config, (block, "enabled")) not in (reading.ABSENT, None, False))


def _bf16_block(config: dict[str, Any]) -> str:
    return "bf16" if config.get("bf16") is not None else "bfloat16"


def _one_half(outcome: Outcome) -> None:
    config = outcome.config
    if _half(config, "fp16") and _half(config, _bf16_block(config)):
        said = "bf16 and fp16 cannot be on together"
        raise Stops("AssertionError", said, "fp16.enabled", "bf16.enabled")


def _optimizer_and_scheduler(outcome: Outcome) -> None:
    config = outcome.config
    for block in ("optimizer", "scheduler"):
        if block not in config:
            continue
        with about(block):
            name = config[block]["type"] if "type" in config[block].keys() else None  # noqa: SIM118
        if block == "optimizer" and name is not None:
            with about("optimizer.type"):
                if name.lower() in OPTIMIZERS:
                    config[block]["type"] = name.lower()


def _clock(outcome: Outcome) -> None:
    """``wall_clock_breakdown | flops_profiler.enabled``."""
    config = outcome.config
    profiler = config.get("flops_profiler", {})
    with about("flops_profiler"):
        enabled = profiler.get("enabled", False)
    written = [
        path
        for path in ("wall_clock_breakdown", "flops_profiler.enabled")
        if not isinstance(reading_at(config, tuple(path.split("."))), bool)
        and reading_at(config, tuple(path.split("."))) is not reading.ABSENT
    ]
    with about(*written):
        _ = config.get("wall_clock_breakdown", False) | enabled


def _sanity(config: dict[str, Any]) -> None:
    """What is checked once everything is parsed."""
    stage = reading_at(config, ("zero_optimization", "stage"))
    if config.get("gradient_allreduce_op") == "sum" and stage == 3:
        said = "gradient_allreduce_op sum does not go with stage 3"
        raise Stops("ValueError", said, "gradient_allreduce_op")
    params = reading_at(config, ("optimizer", "params"))
    named = reading_at(config, ("optimizer", "type")) not in (reading.ABSENT, None)
    if named and params is not reading.ABSENT and params is not None:
        with about("optimizer.params"):
            present = "max_grad_norm" in params.keys()  # noqa: SIM118
        if present:
            with about("optimizer.params.max_grad_norm"):
                _ = params["max_grad_norm"] > 0


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of the parser: keys read by hand, blocks with a model, and a check of its own."""

    by_hand: tuple[str, ...] = ()
    by_model: tuple[str, ...] = ()
    then: Callable[[Outcome], None] | None = None


ORDER = (
    Step(by_hand=("communication_data_type",)),
    Step(by_hand=("seq_parallel_communication_data_type",)),
    Step(by_hand=("gradient_allreduce_op",)),
    Step(by_model=("zero_optimization",)),
    Step(by_hand=("activation_checkpointing",), by_model=("comms_logger",)),
    Step(by_model=MONITORS),
    Step(by_model=("fp16",)),
    Step(by_model=("bf16", "bfloat16"), then=_one_half),
    Step(by_hand=("torch_autocast",), then=_optimizer_and_scheduler),
    Step(then=_clock),
    Step(by_hand=("autotuning",), by_model=("hybrid_engine",)),
    Step(by_hand=("pipeline",)),
    Step(by_hand=("data_efficiency",)),
    Step(by_hand=("checkpoint",)),
    Step(by_hand=("data_types",)),
    Step(by_hand=("aio",), by_model=("weight_quantization",)),
    Step(by_model=("compile",)),
    Step(by_hand=("timers",), by_model=("timers",)),
    Step(by_model=("tensor_parallel",)),
    Step(by_hand=("expert_parallel",)),
)
"""The order in which DeepSpeedConfig goes: of several faults it reports the first."""
