"""``DeepSpeedConfig``: the order in which it reads a config, and where it stops."""

from collections.abc import Iterator, Mapping
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
_CONFIG_ERRORS = ("checkpoint", "data_types.keep_in_fp32_modules")


def parse(outcome: Outcome, world_size: int, ranks: int | None, version: Version) -> None:
    """Read ``outcome.config``, in place. ``ranks`` is an mpu's data-parallel size, or None."""
    config = outcome.config
    _refuse_removed(config, version)
    size: int | float = ranks if ranks is not None else world_size
    if ranks is None and "sequence_parallel_size" in config:
        with about("sequence_parallel_size"):
            size = world_size / config["sequence_parallel_size"]
    _refuse_unmet(config, version, ("communication_data_type",))
    _refuse_unmet(config, version, ("seq_parallel_communication_data_type",))
    _refuse_unmet(config, version, ("gradient_allreduce_op",))
    found = reading.read(config, version)
    _typed(outcome, found, ("zero_optimization",))
    _typed(outcome, found, ("comms_logger", "tensorboard", "wandb", "comet", "csv_monitor"))
    _typed(outcome, found, ("fp16",))
    _typed(outcome, found, ("bf16", "bfloat16"))
    if _half(config, "fp16") and (_half(config, "bf16") or _half(config, "bfloat16")):
        said = "bf16 and fp16 cannot be on together"
        raise Stops("AssertionError", said, "fp16.enabled", "bf16.enabled")
    _refuse_unmet(config, version, ("torch_autocast",))
    _optimizer_and_scheduler(outcome)
    _clock(config)
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
        if roots is not None and path[0] not in roots:
            continue
        value = reading_at(config, path)
        if value is reading.ABSENT:
            continue
        demand = unmet(path, value, version)
        if demand is not None and not demand.late:
            dotted = ".".join(path)
            said = f"{dotted} is {value!r}; DeepSpeed takes {demand.expected}"
            raise Stops(_class_of(dotted, value), said, dotted)


def _class_of(dotted: str, value: Any) -> str:
    """The exception behind a demand: bare where a method or operator meets a wrong type."""
    if dotted.startswith(_CONFIG_ERRORS) and (isinstance(value, str) or "." in dotted):
        return "DeepSpeedConfigError" if not _is_method_missing(dotted, value) else "AttributeError"
    if dotted in ("wall_clock_breakdown", "flops_profiler.enabled", "vocabulary_size"):
        return "TypeError"
    if dotted in ("communication_data_type", "seq_parallel_communication_data_type"):
        return "ValueError" if isinstance(value, str) else "AttributeError"
    if dotted in ("gradient_allreduce_op", "torch_autocast.dtype"):
        return "ValueError"
    return "AttributeError"


def _is_method_missing(dotted: str, value: Any) -> bool:
    return dotted == "checkpoint.tag_validation" and not isinstance(value, str)


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
        kind = "TypeError" if len(block.path) == 1 else "ValidationError"
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


def _clock(config: dict[str, Any]) -> None:
    """``wall_clock_breakdown | flops_profiler.enabled``."""
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
    if params is not reading.ABSENT and params is not None:
        with about("optimizer.params"):
            present = "max_grad_norm" in params.keys()  # noqa: SIM118
        if present:
            with about("optimizer.params.max_grad_norm"):
                _ = params["max_grad_norm"] > 0
