"""What DeepSpeed demands of the values it reads with plain ``dict.get``.

Each demand is one way a single value stops the program: while the file is read
(``late=False``), or when the engine is built or steps for the first time. A value that
meets every demand may still be one nobody meant; that is for the rules to say.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeGuard

from dsconfig.schema.version import OLDEST, Version

Test = Callable[[Any], bool]


class Demand(NamedTuple):
    """``accepts`` is true for values the program takes; ``expected`` says which those are."""

    path: tuple[str, ...]
    accepts: Test
    expected: str
    since: Version = OLDEST
    until: Version | None = None
    late: bool = False

    def holds_at(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def mapping(value: Any) -> bool:
    return isinstance(value, dict)


def mapping_or_null(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def mapping_or_empty(value: Any) -> bool:
    return not value or isinstance(value, dict)


def text(value: Any) -> bool:
    return isinstance(value, str)


def text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def number(value: Any) -> bool:
    return isinstance(value, (int, float))


def number_or_null(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))


def whole(value: Any) -> bool:
    """What Python's ``|`` with a bool takes."""
    return isinstance(value, int)


def has_switch(value: Any) -> bool:
    """A block whose "enabled" is taken out without asking whether it is there."""
    return isinstance(value, dict) and "enabled" in value


def truthy(value: Any) -> bool:
    return bool(value)


def null(value: Any) -> bool:
    return value is None


def word(*choices: str | None) -> Test:
    """One of the words in any letter case; None as a choice allows null."""

    def accepts(value: Any) -> bool:
        if value is None:
            return None in choices
        return isinstance(value, str) and value.lower() in choices

    return accepts


def exactly(*choices: Any) -> Test:
    def accepts(value: Any) -> bool:
        return isinstance(value, (str, int, float, type(None))) and value in choices

    return accepts


def timers(value: Any) -> bool:
    """A block, or a list or text that does not hold "throughput", which is looked up then."""
    return isinstance(value, dict) or (isinstance(value, (list, str)) and "throughput" not in value)


def texts(value: Any) -> bool:
    """Iterable, and each item a text; a bare text counts, its characters are texts."""
    if isinstance(value, (str, dict)):
        return True
    return _is_list(value) and all(isinstance(item, str) for item in value)


def auto_or_list_of_texts(value: Any) -> bool:
    return value == "auto" or (isinstance(value, list) and texts(value))


def a_switch(value: Any) -> bool:
    return isinstance(value, (int, float)) and value in (0, 1)


def printable_steps(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and value != 0)


def as_integer(value: Any) -> bool:
    """Whether Python's ``int()`` takes it."""
    if not isinstance(value, (int, float, str)):
        return False
    try:
        int(value)
    except (ValueError, OverflowError):
        return False
    return True


def divisible_by_eight_or_number(value: Any) -> bool:
    return not value or isinstance(value, (int, float))


DTYPES = {
    "fp16": ("fp16", "float16", "half", "torch.float16"),
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
    "fp32": ("fp32", "float32", "float", "torch.float32"),
    "int8": ("int8", "torch.int8"),
}
DTYPE_OF_NAME = {name: dtype for dtype, names in DTYPES.items() for name in names}
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
SWITCH = "true or false"
BLOCK = "a block of keys"


def _v(written: str) -> Version:
    return Version.parse(written)


def _demand(
    path: str,
    accepts: Test,
    expected: str,
    since: str = "0.3.0",
    until: str | None = None,
    *,
    late: bool = False,
) -> Demand:
    last = _v(until) if until else None
    return Demand(tuple(path.split(".")), accepts, expected, _v(since), last, late)


def _top_level() -> Iterable[Demand]:
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu"):
        yield _demand(name, number_or_null, "a positive integer")
    yield _demand("gradient_accumulation_steps", number_or_null, "a positive integer")
    types = 'one of "fp16", "bf16", "fp32"'
    old_types = 'one of "fp16", "bfp16", "fp32"'
    path = "communication_data_type"
    yield _demand(path, word("fp16", "fp32", "bfp16", None), old_types, "0.5.8", "0.14.0")
    yield _demand(path, word("fp16", "fp32", "bf16", None), types, "0.14.1")
    path = "seq_parallel_communication_data_type"
    yield _demand(path, word("fp16", "fp32", "bf16", None), types, "0.16.5")
    yield _demand("gradient_allreduce_op", word("mean", "sum"), '"mean" or "sum"', "0.19.6")
    yield _demand("wall_clock_breakdown", whole, SWITCH)
    yield _demand("vocabulary_size", divisible_by_eight_or_number, "an integer")
    yield _demand("gradient_clipping", number, "a number", late=True)
    yield _demand("steps_per_print", printable_steps, "a number of steps, not 0", late=True)
    levels = ", ".join(f'"{level}"' for level in LOG_LEVELS)
    yield _demand("log_level", word(*LOG_LEVELS), f"one of {levels}", "0.19.3", late=True)


def _blocks() -> Iterable[Demand]:
    for path, since in (
        ("activation_checkpointing", "0.3.0"),
        ("pipeline", "0.3.0"),
        ("optimizer", "0.3.0"),
        ("scheduler", "0.3.0"),
        ("flops_profiler", "0.3.11"),
        ("checkpoint", "0.3.11"),
        ("autotuning", "0.5.7"),
        ("data_types", "0.7.6"),
        ("checkpoint.parallel_write", "0.7.4"),
        ("data_efficiency", "0.8.0"),
        ("data_efficiency.data_sampling", "0.8.0"),
        ("data_efficiency.data_routing", "0.8.0"),
        ("data_efficiency.data_sampling.curriculum_learning", "0.8.0"),
        ("data_efficiency.data_routing.random_ltd", "0.8.0"),
        ("data_efficiency.data_sampling.dynamic_batching", "0.16.5"),
        ("torch_autocast", "0.17.2"),
    ):
        yield _demand(path, mapping, BLOCK, since)
    for path, since in (("fp16", "0.3.0"), ("bf16", "0.6.0")):
        yield _demand(path, mapping, BLOCK, since, "0.17.0")
    for path, since in (("tensorboard", "0.3.0"),):
        yield _demand(path, mapping, BLOCK, since, "0.6.5")
    yield _demand("aio", mapping_or_null, BLOCK, "0.3.15")
    yield _demand("autotuning.model_info", mapping_or_null, BLOCK, "0.5.7")
    yield _demand("timers", timers, BLOCK, "0.14.3")
    yield _demand("checkpoint.writer", mapping_or_null, BLOCK, "0.17.1")
    yield _demand("expert_parallel", mapping_or_empty, BLOCK, "0.19.2")


def _removed_blocks() -> Iterable[Demand]:
    """What releases that still had a feature demanded of its block."""
    switched = 'a block of keys with "enabled"'
    for path, since in (
        ("amp", "0.3.0"),
        ("progressive_layer_drop", "0.3.1"),
        ("curriculum_learning", "0.5.0"),
    ):
        yield _demand(path, has_switch, switched, since, "0.19.7")
    yield _demand("nebula", mapping, BLOCK, "0.7.0", "0.19.6")
    yield _demand("sparse_attention", mapping, BLOCK, "0.3.0", "0.19.6")
    yield _demand("elasticity", mapping, BLOCK, "0.3.9", "0.19.7")
    yield _demand("compression_training", mapping, BLOCK, "0.7.0", "0.19.6")
    pruned = ("sparse_pruning", "row_pruning", "head_pruning", "channel_pruning")
    for method in ("weight_quantization", "activation_quantization", *pruned):
        path = f"compression_training.{method}"
        yield _demand(path, mapping, BLOCK, "0.7.0", "0.19.6")
        yield _demand(f"{path}.shared_parameters", mapping, BLOCK, "0.7.0", "0.19.6")
    modes = ("dense", "fixed", "variable", "bigbird", "bslongformer")
    named = f"one of {', '.join(modes)}"
    yield _demand("sparse_attention.mode", exactly(*modes), named, "0.3.0", "0.19.6")


def _inside_blocks() -> Iterable[Demand]:
    yield _demand("optimizer.type", text_or_null, "a name")
    tags = '"Ignore", "Warn" or "Fail"'
    yield _demand("checkpoint.tag_validation", word("ignore", "warn", "fail"), tags, "0.3.11")
    yield _demand("checkpoint.parallel_write.pipeline_stage", a_switch, SWITCH, "0.7.4")
    writers = '"mock", "python" or "fast"'
    yield _demand("checkpoint.writer.type", word("mock", "python", "fast", None), writers, "0.17.1")
    units = '"replica", "socket" or "machine"'
    path = "checkpoint.writer.data_parallel"
    yield _demand(path, word("replica", "socket", "machine", None), units, "0.17.1")
    yield _demand("flops_profiler.enabled", whole, SWITCH, "0.3.11")
    yield _demand("autotuning.results_dir", truthy, "a directory", "0.5.7")
    yield _demand("autotuning.exps_dir", truthy, "a directory", "0.5.7")
    dtypes = 'one of "fp16", "bf16", "fp32"'
    yield _demand("torch_autocast.dtype", exactly(*DTYPE_OF_NAME), dtypes, "0.17.2")
    path = "torch_autocast.lower_precision_safe_modules"
    yield _demand(path, texts, "a list of class names", "0.17.2")
    path = "data_types.keep_in_fp32_modules"
    yield _demand(path, auto_or_list_of_texts, '"auto" or a list of name patterns', "0.19.8")
    for name, since in (
        ("grad_accum_dtype", "0.7.6"),
        ("param_dtype", "0.19.2"),
        ("buffer_dtype", "0.19.2"),
    ):
        accepts = exactly(None, *DTYPE_OF_NAME)
        yield _demand(f"data_types.{name}", accepts, dtypes, since, late=True)
    yield _demand("expert_parallel.load_balance_coeff", null, "null", "0.19.2")
    path = "data_efficiency.data_sampling.dynamic_batching"
    for name in ("min_batch_size", "max_batch_size"):
        yield _demand(f"{path}.{name}", as_integer, "an integer", "0.16.5")


@cache
def demands() -> Mapping[tuple[str, ...], tuple[Demand, ...]]:
    """All of them, by path."""
    found: dict[tuple[str, ...], tuple[Demand, ...]] = {}
    for group in (_top_level(), _blocks(), _removed_blocks(), _inside_blocks()):
        for demand in group:
            found[demand.path] = (*found.get(demand.path, ()), demand)
    return found


def unmet(path: tuple[str, ...], value: Any, version: Version) -> Demand | None:
    """The first demand that a value at a path does not meet at a release."""
    for demand in demands().get(path, ()):
        if demand.holds_at(version) and not demand.accepts(value):
            return demand
    return None
