"""DeepSpeed's checks across several keys, by release.

Checks of a single key are declared with the key. The rules report these conditions, and the replay
of the parser stops at them.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dsconfig.batch import KEYS
from dsconfig.runtimes.read_config import ZERO, ReadConfig
from dsconfig.schema import former_names
from dsconfig.schema.catalogue import find
from dsconfig.schema.version import Version
from dsconfig.source.pointer import is_block

Path = tuple[str, ...]


class Violation(NamedTuple):
    """A violated condition and its keys; the first one is at fault."""

    paths: tuple[Path, ...]
    message: str
    exception: str = "ValidationError"

    @property
    def path(self) -> Path:
        return self.paths[0]


Find = Callable[[ReadConfig], Iterator[Violation]]


class Condition(NamedTuple):
    """A check that DeepSpeed runs when it parses the top-level key ``root``."""

    root: str
    find: Find


AT_THE_END = ""
"""Root of conditions that are checked after parsing, when the batch size is derived."""
CONDITIONS: dict[str, Condition] = {}
"""Conditions by the name of the rule that reports them."""


def _condition(name: str, root: str = AT_THE_END) -> Callable[[Find], Find]:
    def register(find: Find) -> Find:
        CONDITIONS[name] = Condition(root, find)
        return find

    return register


def violations(config: ReadConfig, roots: tuple[str, ...] | None) -> Iterator[Violation]:
    """Yield violations checked with these top-level keys (None: all except at the end)."""
    for condition in CONDITIONS.values():
        if condition.root in roots if roots is not None else condition.root != AT_THE_END:
            yield from condition.find(config)


# ZeRO.

ZERO_WITHOUT_FP16 = Version(0, 3, 16)
STAGE_1_WITHOUT_FP16 = Version(0, 4, 0)
PYDANTIC_ZERO = Version(0, 7, 0)


def old_stage(config: ReadConfig) -> float | None:
    """Return the stage as releases before 0.7.0 compare it; None if it is not a number."""
    value = config.get("zero_optimization")
    if is_block(value):
        value = value.get("stage", 0)
    return value if isinstance(value, (int, float)) else None


@_condition("zero-needed-fp16", "zero_optimization")
def zero_needed_fp16(config: ReadConfig) -> Iterator[Violation]:
    if config.version >= STAGE_1_WITHOUT_FP16 or config.fp16:
        return
    stage = old_stage(config)
    if stage is not None and stage > 0 and (config.version < ZERO_WITHOUT_FP16 or stage < 2):
        message = f"DeepSpeed {config.version} requires fp16 for ZeRO stage {stage:g}"
        yield Violation((ZERO,), message, "AssertionError")


@_condition("old-zero-limits", "zero_optimization")
def old_zero_limits(config: ReadConfig) -> Iterator[Violation]:
    if config.version >= PYDANTIC_ZERO or not config.has(*ZERO):
        return
    block = config.get(*ZERO)
    if not is_block(block):
        if not isinstance(block, bool):
            yield Violation((ZERO,), "zero_optimization is not an object", "AttributeError")
        return
    stage = block.get("stage", 0)
    highest = 3 if config.since("0.3.8") else 2
    if not isinstance(stage, (int, float)):
        yield Violation(((*ZERO, "stage"),), "zero_optimization.stage is not a number", "TypeError")
    elif stage > highest:
        message = f"zero_optimization.stage is above {highest}"
        yield Violation(((*ZERO, "stage"),), message, "AssertionError")
    if config.since("0.3.15"):
        yield from _old_offload(config, block)


def _old_offload(config: ReadConfig, block: dict[str, Any]) -> Iterator[Violation]:
    switches = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_params"}
    for name, switch in switches.items():
        value = block.get(name)
        if value is None or switch in block:
            continue
        path = (*ZERO, name)
        if not is_block(value):
            yield Violation((path,), f"{'.'.join(path)} is not an object", "AttributeError")
        elif config.since("0.5.7") and value.get("device", "cpu") not in ("none", "cpu", "nvme"):
            message = f"{'.'.join(path)}.device must be none, cpu or nvme"
            yield Violation(((*path, "device"),), message, "ValueError")


@_condition("deprecated-and-replacement", "zero_optimization")
def deprecated_and_replacement(config: ReadConfig) -> Iterator[Violation]:
    block = config.block(*ZERO)
    if config.version < PYDANTIC_ZERO:
        return
    for name, old in (former_names.SWITCHES | former_names.RENAMED).items():
        known = find((*ZERO, name))
        if block.get(old, "auto") == "auto" or known is None:
            continue
        for new in (name, *known.aliases):
            if block.get(new, "auto") != "auto":
                message = f'"{old}" and its replacement "{new}" are both set'
                yield Violation(((*ZERO, old),), message, "AssertionError")


@_condition("grad-norm-needs-stage", "zero_optimization")
def grad_norm_needs_stage(config: ReadConfig) -> Iterator[Violation]:
    if not config.in_force(ZERO, "compute_grad_norm") and config.stage in (0, 3):
        message = f"compute_grad_norm false requires ZeRO stage 1 or 2, not {config.stage}"
        yield Violation(((*ZERO, "compute_grad_norm"),), message)


@_condition("partial-offload-needs-stage-3", "zero_optimization")
def partial_offload_needs_stage_3(config: ReadConfig) -> Iterator[Violation]:
    block = (*ZERO, "offload_optimizer")
    if not config.has(*block) or config.stage == 3 or not config.since("0.15.0"):
        return
    ratio = config.in_force(block, "ratio")
    if ratio < 1:
        message = f"offload_optimizer.ratio {ratio:g} at ZeRO stage {config.stage}"
        yield Violation(((*block, "ratio"),), message)


ZENFLOW = (*ZERO, "zenflow")


@_condition("zenflow-selection", "zero_optimization")
def zenflow_values(config: ReadConfig) -> Iterator[Violation]:
    """Values that the model refuses; pairs that only the optimizer refuses are left to the rule."""
    values = config.reading.values.get(ZENFLOW)
    if values is None or config.get(*ZENFLOW) is None:
        return

    def wrong(name: str, what: str) -> Violation:
        return Violation(((*ZENFLOW, name),), f"zenflow.{name} {what}")

    if config.in_force(ZENFLOW, "select_strategy") not in ("auto", "step", "epoch"):
        yield wrong("select_strategy", 'must be "auto", "step" or "epoch"')
    for name in ("select_interval", "update_interval"):
        value = values.get(name, "auto")
        if isinstance(value, str) and value != "auto":
            yield wrong(name, 'must be a number or "auto"')
    update = values.get("update_interval", "auto")
    if isinstance(update, int) and update < 1 and config.since("0.19.6"):
        yield wrong("update_interval", "must be at least 1")


@_condition("sum-not-supported")
def sum_not_supported(config: ReadConfig) -> Iterator[Violation]:
    if not sums(config) or not config.since("0.19.6"):
        return
    reasons = {
        "ZeRO stage 3": config.stage == 3,
        "ZenFlow": config.get(*ZENFLOW) not in (None, "auto"),
        "DeepCompile": config.is_on(("compile",), "deepcompile"),
    }
    for reason, holds in reasons.items():
        if holds:
            message = f'gradient_allreduce_op "sum" is not supported with {reason}'
            yield Violation((("gradient_allreduce_op",),), message, "ValueError")


def sums(config: ReadConfig) -> bool:
    """Return whether gradients are summed rather than averaged."""
    value = config.get("gradient_allreduce_op")
    return isinstance(value, str) and value.lower() == "sum"


# Precision.


@_condition("loss-scale-limits", "fp16")
def loss_scale_limits(config: ReadConfig) -> Iterator[Violation]:
    if config.since("0.19.3"):
        yield from unusable_scale_limits(config)


def unusable_scale_limits(config: ReadConfig) -> Iterator[Violation]:
    """A window or minimum that no dynamic scale can use."""
    if not config.fp16 or config.in_force(("fp16",), "loss_scale") != 0:
        return
    for name in ("loss_scale_window", "min_loss_scale"):
        value = config.in_force(("fp16",), name)
        if value <= 0:
            message = f"fp16.{name} is {value:g} with a dynamic loss scale"
            yield Violation((("fp16", name),), message)


@_condition("fp16-with-bf16", "bf16")
def fp16_with_bf16(config: ReadConfig) -> Iterator[Violation]:
    if config.fp16 and config.bf16 and config.since("0.6.0"):
        keys = (("fp16", "enabled"), (config.bf16_block, "enabled"))
        yield Violation(keys, f"fp16 and {config.bf16_block} are both enabled", "AssertionError")


@_condition("bf16-needed-zero", "bf16")
def bf16_needed_zero(config: ReadConfig) -> Iterator[Violation]:
    if not config.since("0.6.0") or config.since("0.6.2") or not config.bf16:
        return
    if old_stage(config) not in (1, 2, 3):
        message = f"DeepSpeed {config.version} requires ZeRO stage 1, 2 or 3 for bf16"
        yield Violation(((config.bf16_block, "enabled"),), message, "AssertionError")


MASTER_KEYS = (
    ("fp16", "fp16_master_weights_and_grads"),
    ("bf16", "bf16_master_weights_and_grads"),
    ("bf16", "bf16_optimizer_states"),
)


def keeps_masters(config: ReadConfig, path: Path) -> bool:
    """Return whether a key of ``MASTER_KEYS`` requests 16-bit masters or states."""
    block = config.bf16_block if path[0] == "bf16" else path[0]
    if config.since("0.17.1"):
        return config.is_on((block,), path[1])
    return config.since("0.5.0") and config.fp16 and config.switch(*path)


def stages_with_masters(config: ReadConfig) -> tuple[int, ...]:
    """Return the stages that keep 16-bit masters at this release."""
    return (1, 2, 3) if config.since("0.18.3") else (2,)


@_condition("master-weights-need-zero")
def master_weights_need_zero(config: ReadConfig) -> Iterator[Violation]:
    if config.stage in stages_with_masters(config):
        return
    for path in MASTER_KEYS:
        if keeps_masters(config, path):
            message = f"{'.'.join(path)} is enabled at ZeRO stage {config.stage}"
            yield Violation((path,), message, "AssertionError")


@_condition("bf16-states-need-masters")
def bf16_states_need_masters(config: ReadConfig) -> Iterator[Violation]:
    block = (config.bf16_block,)
    states = config.is_on(block, "bf16_optimizer_states")
    if states and not config.is_on(block, "bf16_master_weights_and_grads"):
        message = "bf16_optimizer_states requires bf16_master_weights_and_grads"
        yield Violation(((*block, "bf16_optimizer_states"),), message, "AssertionError")


# Data, files and what was taken out.

CURRICULUM = ("data_efficiency", "data_sampling", "curriculum_learning")
BATCHING = ("data_efficiency", "data_sampling", "dynamic_batching")


@_condition("curriculum-without-metrics", "data_efficiency")
def curriculum_without_metrics(config: ReadConfig) -> Iterator[Violation]:
    enabled = config.since("0.8.0") and config.get(*CURRICULUM, "enabled")
    if enabled and not config.has(*CURRICULUM, "curriculum_metrics"):
        message = "curriculum_learning is enabled without curriculum_metrics"
        yield Violation(((*CURRICULUM, "curriculum_metrics"),), message, "AssertionError")


@_condition("dynamic-batching-without-tokens", "data_efficiency")
def dynamic_batching_without_tokens(config: ReadConfig) -> Iterator[Violation]:
    if config.since("0.16.5") and config.get(*BATCHING, "enabled"):
        try:
            int(config.get(*BATCHING, "max_tokens"))
        except (TypeError, ValueError, OverflowError):
            path = (*BATCHING, "max_tokens")
            yield Violation(
                (path,), "dynamic_batching requires a numeric max_tokens", "AssertionError"
            )


@_condition("gds-not-on-device", "aio")
def gds_not_on_device(config: ReadConfig) -> Iterator[Violation]:
    device = config.facts.device
    if config.switch("aio", "use_gds") and device is not None and device.kind != "cuda":
        message = f"use_gds requires an NVIDIA GPU, not {device.name}"
        yield Violation((("aio", "use_gds"),), message, "AssertionError")


@_condition("elasticity-with-batch", "elasticity")
def elasticity_with_batch(config: ReadConfig) -> Iterator[Violation]:
    if not config.since("0.3.9") or config.since("0.19.8"):
        return
    ignores = config.switch("elasticity", "ignore_non_elastic_batch_info")
    written = [key for key in sorted(KEYS) if key in config.config]
    if config.switch("elasticity", "enabled") and written and not ignores:
        message = f"elasticity is enabled, and {' and '.join(written)} is set"
        yield Violation((("elasticity", "enabled"),), message, "ElasticityConfigError")


@_condition("wrong-level-name-error", "compression_training")
def compression_at_wrong_level(config: ReadConfig) -> Iterator[Violation]:
    path = ("compression_training", "shared_parameters", "enabled")
    if config.since("0.7.0") and not config.since("0.19.3") and config.switch(*path):
        message = "shared_parameters is not in a method of compression_training"
        yield Violation((path,), message, "NameError")
