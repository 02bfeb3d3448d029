"""Rules for ZeRO stages and keys that have no effect at the selected stage."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding, fills_auto, not_fills_auto
from dsconfig.report import Effect
from dsconfig.schema import find
from dsconfig.schema.paths import AUTOTP_SIZE, OFFLOAD_OPTIMIZER, STAGE, TENSOR_PARALLEL, ZERO
from dsconfig.source.pointer import is_block


@rule("DSC401", Effect.ALTERED, also=(Effect.INERT,), triggers="zero_optimization")
def stage_missing(config: Context) -> Iterator[Finding]:
    """`zero_optimization` without `stage`

    The default is 0, which disables ZeRO. The other keys of the block, including offload, have no
    effect.

    bad: {"train_batch_size": 8, "zero_optimization": {"overlap_comm": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": true}}
    """
    block = config.get("zero_optimization")
    if not is_block(block) or config.has(*STAGE):
        return
    yield Finding(
        path=ZERO,
        message="zero_optimization has no stage: the default 0 disables ZeRO",
        help='add "stage": 1, 2 or 3',
        effect=None if block else Effect.INERT,
        on_key=True,
    )


@rule("DSC402", Effect.INERT, triggers="zero_optimization")
def no_effect_at_stage(config: Context) -> Iterator[Finding]:
    """Key has no effect at this ZeRO stage

    `stage3_*`, `sub_group_size`, `offload_param` and ZeRO++ keys require stage 3;
    `allgather_bucket_size` and `round_robin_gradients` apply to stages 1 and 2. At stage 0 no key
    of the block has an effect. With tensor parallelism, accelerate gathers weights at every stage.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "stage3_max_live_parameters":
        1e9}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "stage3_max_live_parameters":
        1e9}}
    """
    if not config.stage_is_known:
        return
    for key, value in config.block("zero_optimization").items():
        known = find(ZERO / key)
        stages = known.declared.stages if known else ()
        if not stages or config.stage in stages or _is_off(value):
            continue
        needed = " or ".join(str(stage) for stage in stages) if len(stages) < 3 else "1 or more"
        yield Finding(
            path=ZERO / key,
            message=f"{key} has no effect at ZeRO stage {config.stage}: it requires stage {needed}",
            help=f'delete it, or set "stage": {max(stages)}',
            on_key=True,
            applies_to=not_fills_auto if key in GATHERED and _is_split(config) else None,
        )
    yield from _offload_details(config)


def _is_off(value: object) -> bool:
    """Return whether a value is a disabled switch or an offload block without a device."""
    if value is None or value is False or value == "auto":
        return True
    return is_block(value) and value.get("device", "none") == "none"


def _offload_details(config: Context) -> Iterator[Finding]:
    if config.stage not in (1, 2):
        return
    block = config.block("zero_optimization", "offload_optimizer")
    for key, value in block.items():
        known = find(OFFLOAD_OPTIMIZER / key)
        if known is not None and known.declared.stages == (3,) and not _is_off(value):
            yield Finding(
                path=OFFLOAD_OPTIMIZER / key,
                message=f"offload_optimizer.{key} has no effect at ZeRO stage {config.stage}: "
                "it requires stage 3",
                help='delete it, or set "stage": 3',
                on_key=True,
            )


def _is_split(config: Context) -> bool:
    """Return whether the config enables tensor parallelism."""
    block = TENSOR_PARALLEL
    return config.has(*block) and config.in_force(block, AUTOTP_SIZE.name) > 1


GATHERED = (
    "stage3_gather_16bit_weights_on_model_save",
    "gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
)
"""Names of the switch that gathers the weights to save them, the current one first."""


@rule("DSC403", Effect.NOTE, triggers="zero_optimization")
def placeholder_weights_on_save(config: Context) -> Iterator[Finding]:
    """Saved model contains placeholders, or saving fails

    At stage 3, `save_16bit_model` and `save_pretrained` write full weights only with
    `stage3_gather_16bit_weights_on_model_save`. Without it, the saved model has placeholders of a
    few kilobytes; the weights are in the sharded checkpoint, from which `zero_to_fp32.py` merges
    them. With tensor parallelism, accelerate requires the switch at every stage: without it,
    `get_state_dict` raises ValueError when the model is saved.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3,
        "stage3_gather_16bit_weights_on_model_save": true}}
    """
    is_auto = config.get(*ZERO, GATHERED[0]) == "auto"
    if is_auto or any(config.in_force(ZERO, name) for name in GATHERED[1:]):
        return
    if config.stage_is_known and config.stage != 3 and _is_split(config):
        yield Finding(
            path=AUTOTP_SIZE,
            message="with tensor parallelism, accelerate raises ValueError when the model is saved "
            "unless the weights are gathered",
            help=f'add "{GATHERED[0]}": true to zero_optimization',
            on_key=True,
            applies_to=fills_auto,
        )
    if config.stage == 3:
        yield Finding(
            path=ZERO,
            message="at stage 3, a saved model contains placeholders instead of weights unless "
            "they "
            "are gathered",
            help='add "stage3_gather_16bit_weights_on_model_save": true, or convert checkpoints '
            "with zero_to_fp32.py",
            on_key=True,
        )


@rule("DSC404", Effect.COSTLY, also=(Effect.INERT,), triggers="zero_optimization")
def non_positive_size(config: Context) -> Iterator[Finding]:
    """Zero or negative size that DeepSpeed accepts

    `sub_group_size` then puts every parameter in its own group, and the optimizer steps once per
    group: slow, with the smallest footprint. Other sizes have no effect (`inert`): gathering uses
    no bucket, and a granularity threshold or secondary partition below 1 is disabled.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "sub_group_size": 0}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "sub_group_size": 1e9}}
    """
    for key in config.block("zero_optimization"):
        known = find(ZERO / key)
        if (
            known is None
            or known.model_name not in SIZES
            or not config.written(ZERO, known.model_name)
        ):
            continue
        value = config.in_force(ZERO, known.model_name)
        if value > 0 or (value == 0 and known.model_name not in NEVER_ZERO):
            continue
        if known.model_name == "sub_group_size":
            yield Finding(
                path=ZERO / key,
                message=f"{key} is {value}: every parameter is its own group, and the optimizer "
                "steps "
                "once per group",
                help="write a number of elements: larger is faster, smaller requires less memory",
            )
        else:
            yield Finding(
                path=ZERO / key,
                message=f"{key} is {value}: it is disabled and has no effect",
                help="delete it, or write a number above 0",
                effect=Effect.INERT,
            )


NEVER_ZERO = frozenset({"sub_group_size", "allgather_bucket_size", "zero_hpz_partition_size"})
SIZES = NEVER_ZERO | {"module_granularity_threshold"}


@rule("DSC405", Effect.COSTLY, also=(Effect.INERT,), triggers="zero_optimization")
def prefetching_disabled(config: Context) -> Iterator[Finding]:
    """Stage 3 limit prevents prefetching or persistence

    `stage3_max_live_parameters` and `stage3_prefetch_bucket_size` limit prefetching: if either is
    0, every module waits for its weights. A `stage3_param_persistence_threshold` above
    `stage3_model_persistence_threshold` has no effect beyond the latter (`inert`).

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "stage3_max_live_parameters": 0}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "stage3_max_live_parameters":
        1e9}}
    """
    if config.stage != 3:
        return
    if config.in_force(ZERO, "max_live_parameters") == 0:
        more = ' and "stage3_prefetch_bucket_size": 5e7'
        ahead = config.in_force(ZERO, "prefetch_bucket_size")
        yield Finding(
            path=ZERO / _as_written(config, "max_live_parameters"),
            message="stage3_max_live_parameters is 0: nothing is prefetched, and every module "
            "waits "
            "for its weights",
            help='write "stage3_max_live_parameters": 1e9' + (more if ahead == 0 else ""),
        )
    per_param = config.in_force(ZERO, "param_persistence_threshold")
    per_model = config.in_force(ZERO, "model_persistence_threshold")
    if per_param > per_model:
        yield Finding(
            path=ZERO / _as_written(config, "param_persistence_threshold"),
            message=f"stage3_param_persistence_threshold {per_param} exceeds "
            f"stage3_model_persistence_threshold {per_model}: larger parameters never persist",
            help="lower stage3_param_persistence_threshold, or raise the other",
            effect=Effect.INERT,
        )


def _as_written(config: Context, name: str) -> str:
    """Return the name of a key as written in the config."""
    long_name = f"stage3_{name}"
    return long_name if config.has(*ZERO, long_name) else name
