"""Rules for known bugs of transformers and accelerate releases with DeepSpeed.

Each bug is reported in the thread that its message names; its range was read in the sources of the
first and last affected release and their neighbors. Checked if the release is known: ``dsconfig
doctor`` detects the installed one, ``validate --with transformers==4.48.0`` specifies it.
"""

from collections.abc import Callable, Iterator

from dsconfig.batch import STEPS
from dsconfig.checks.context import Context
from dsconfig.checks.fault import Evidence, FaultFinding, fault, lost_steps
from dsconfig.checks.rule import fills_auto, fills_auto_for_script, reads_training_arguments
from dsconfig.report import Effect
from dsconfig.runtimes import integrations
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.integrations import SpecifiedModel
from dsconfig.runtimes.replay import MissingFact, ReplayStop
from dsconfig.schema.paths import ROOT, ZERO, KeyPath
from dsconfig.schema.version import Version
from dsconfig.source.pointer import value_at

ALL_MODELS = Version(4, 48, 0)
"""First release whose Trainer divides the loss itself for every model."""


@fault(
    "DSC846",
    "4.46.0 to 4.46.1",
    "huggingface/transformers#34263",
    "use transformers 4.49.0 or later",
    effect=Effect.NOTE,
    triggers="transformers",
    program="transformers",
    applies_to=reads_training_arguments,
    evidence=Evidence.ENDS,
)
def loss_not_divided(config: Context) -> Iterator[FaultFinding]:
    """transformers 4.46.0 and 4.46.1 multiply the loss by the gradient accumulation steps

    DeepSpeed divides it by the same number, so for a model that does not accept
    `num_items_in_batch` the gradients are summed over micro steps instead of averaged.

    with: runtime="transformers", releases={"transformers": "4.46.1"}
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2}}
    """
    behavior = "sum gradients over micro steps for models that do not accept num_items_in_batch"
    yield from lost_steps(config, ROOT / STEPS, behavior, 1)


@fault(
    "DSC847",
    "4.46.2 to 4.48.3",
    "huggingface/transformers#35808",
    "use transformers 4.49.0 or later",
    triggers="transformers",
    program="transformers",
    applies_to=reads_training_arguments,
    evidence=Evidence.ENDS,
)
def loss_divided_twice(config: Context) -> Iterator[FaultFinding]:
    """transformers 4.46.2 to 4.48.3 and DeepSpeed both divide the loss by the accumulation steps

    Gradients and their norms are too small by that factor: clipping applies too late, and SGD
    learns more slowly. Before 4.48.0 this affects only models that accept `num_items_in_batch`, as
    most decoders do.

    with: runtime="transformers", releases={"transformers": "4.48.3"}
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2}}
    """
    behavior = "divide gradients by the accumulation steps twice"
    every_model = Version.parse(config.facts.releases["transformers"]) >= ALL_MODELS
    models = "" if every_model else ", for models that accept num_items_in_batch"
    for found in lost_steps(config, ROOT / STEPS, behavior, 1):
        yield found._replace(
            behavior=found.behavior + models, certain=found.certain and every_model
        )


@fault(
    "DSC848",
    "0.23.0 to 0.25.0",
    "huggingface/accelerate#2304",
    "use accelerate 0.26.0 or later",
    effect=Effect.NOTE,
    triggers="accelerate",
    program="accelerate",
    applies_to=fills_auto_for_script,
    evidence=Evidence.ENDS,
)
def schedule_too_slow(config: Context) -> Iterator[FaultFinding]:
    """accelerate 0.23.0 to 0.25.0 step the script's schedule too rarely

    They pass the schedule to DeepSpeed, which steps it once where accelerate steps it once per
    process. Scripts compute the length of their schedule for the latter, so the learning rate
    decays too slowly.

    with: runtime="accelerate", releases={"accelerate": "0.25.0"}, gpus=8
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    with: runtime="accelerate", releases={"accelerate": "0.26.0"}, gpus=8
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    """
    own = config.optimizer is None and config.scheduler is None
    if own and config.facts.world_size != 1:
        yield FaultFinding(ROOT, "step the script's schedule once instead of once per process")


@fault(
    "DSC865",
    "4.46.2 to 4.47.0",
    "huggingface/transformers#35157, deepspeedai/DeepSpeed#6793",
    "use transformers 4.47.1 or later, or one gradient accumulation step",
    effect=Effect.REFUSED,
    stops="step AssertionError",
    triggers="transformers",
    program="transformers",
    applies_to=reads_training_arguments,
    evidence=Evidence.ENDS,
    from_source="needs transformers releases that are not tested",
)
def no_sync_with_sharded_gradients(config: Context) -> Iterator[FaultFinding]:
    """transformers 4.46.2 to 4.47.0 call `no_sync`, which DeepSpeed 0.16 and later reject

    The Trainer disables synchronization for all micro steps except the last. At stages 2 and 3
    DeepSpeed raises an AssertionError: `no_sync context manager is incompatible with gradient
    partitioning logic of ZeRO stage`.

    with: runtime="transformers", releases={"transformers": "4.47.0"}, version="0.16.2"
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2}}
    """
    if config.stage >= 2 and config.since("0.16.0"):
        yield from lost_steps(config, ROOT / STEPS, "call no_sync, which DeepSpeed rejects", 1)


@fault(
    "DSC880",
    "4.30.0 to 4.33.2",
    "huggingface/transformers#24359",
    "use transformers 4.33.3 or later, add a scheduler block, or delete the optimizer block",
    effect=Effect.REFUSED,
    stops="engine ValueError",
    triggers="transformers",
    program="transformers",
    applies_to=reads_training_arguments,
    evidence=Evidence.ENDS,
    from_source="needs transformers releases that are not tested",
)
def optimizer_without_scheduler(config: Context) -> Iterator[FaultFinding]:
    """transformers 4.30.0 to 4.33.2 require a scheduler block beside an optimizer block

    with: runtime="transformers", releases={"transformers": "4.31.0"}
    bad: {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}, "scheduler":
        {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
        "zero_optimization": {"stage": 2}}
    """
    if config.has("optimizer") and not config.has("scheduler"):
        yield FaultFinding(ROOT / "optimizer", "raise a ValueError without a scheduler block")


@fault(
    "DSC881",
    "4.38.0 to 4.44.2",
    "huggingface/transformers#29058",
    "use transformers 4.45.0 or later, or delete auto_find_batch_size",
    effect=Effect.REFUSED,
    stops="engine NotImplementedError",
    triggers="transformers",
    program="transformers",
    applies_to=reads_training_arguments,
    evidence=Evidence.ENDS,
    from_source="needs transformers releases that are not tested",
)
def batch_search_with_deepspeed(config: Context) -> Iterator[FaultFinding]:
    """transformers 4.38.0 to 4.44.2 reject auto_find_batch_size with DeepSpeed

    Later releases reject it at stage 3 only.

    with: runtime="transformers", releases={"transformers": "4.44.2"},
        training_args={"auto_find_batch_size": True}
    bad: {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    with: runtime="transformers", releases={"transformers": "4.45.0"},
        training_args={"auto_find_batch_size": True}
    good: {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    """
    if config.facts.arguments.get("auto_find_batch_size") is True and config.stage != 3:
        yield FaultFinding(ROOT, "raise a NotImplementedError for auto_find_batch_size")


@fault(
    "DSC882",
    "0.13.0 to 0.34.2",
    "deepspeedai/DeepSpeed#5124",
    'use accelerate 1.0.0 or later, or set "train_micro_batch_size_per_gpu"',
    effect=Effect.REFUSED,
    stops="engine TypeError",
    triggers="accelerate",
    program="accelerate",
    applies_to=fills_auto,
    evidence=Evidence.ENDS,
    from_source="needs accelerate releases that are not tested",
)
def micro_batch_required(config: Context) -> Iterator[FaultFinding]:
    """accelerate 0.13.0 to 0.34.2 require `train_micro_batch_size_per_gpu`

    They multiply it to compute the global batch, and raise a KeyError, since 0.26.0 a TypeError,
    if a file does not contain it.

    with: runtime="accelerate", releases={"accelerate": "0.34.2"}, gpus=8
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    with: runtime="accelerate", releases={"accelerate": "1.0.0"}, gpus=8
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    if not config.has("train_micro_batch_size_per_gpu"):
        yield FaultFinding(ROOT, "raise an error without train_micro_batch_size_per_gpu")


@fault(
    "DSC878",
    "4.6.0 to 4.44.2",
    "huggingface/accelerate#2814",
    "use transformers 4.45.0 or later, or write a number for stage3_prefetch_bucket_size",
    effect=Effect.REFUSED,
    stops="zero ValidationError",
    triggers="transformers",
    program="transformers",
    applies_to=reads_training_arguments,
    evidence=Evidence.ENDS,
    from_source="needs transformers releases that are not tested",
)
def fractional_bucket_of_the_trainer(config: Context) -> Iterator[FaultFinding]:
    """transformers 4.6.0 to 4.44.2 write a fraction for an "auto" prefetch bucket

    It is 0.9 x the square of the hidden size, which DeepSpeed 0.15.0 and later reject unless it is
    an integer.

    with: runtime="transformers", releases={"transformers": "4.44.2"}, model="llama-3-8b"
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
        "stage3_prefetch_bucket_size": "auto"}}
    with: runtime="transformers", releases={"transformers": "4.45.0"}, model="llama-3-8b"
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
        "stage3_prefetch_bucket_size": "auto"}}
    """
    yield from _fractional_bucket(config, integrations.width_for_transformers)


@fault(
    "DSC879",
    "0.10.0 to 0.30.1",
    "huggingface/accelerate#2814",
    "use accelerate 0.31.0 or later, or write a number for stage3_prefetch_bucket_size",
    effect=Effect.REFUSED,
    stops="zero ValidationError",
    triggers="accelerate",
    program="accelerate",
    applies_to=fills_auto_for_script,
    evidence=Evidence.ENDS,
    from_source="needs accelerate releases that are not tested",
)
def fractional_bucket(config: Context) -> Iterator[FaultFinding]:
    """accelerate 0.10.0 to 0.30.1 write a fraction for an "auto" prefetch bucket

    It is 0.9 x the square of the hidden size, which DeepSpeed 0.15.0 and later reject unless it is
    an integer.

    with: runtime="accelerate", releases={"accelerate": "0.30.1"}, model="llama-3-8b"
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
        "stage3_prefetch_bucket_size": "auto"}}
    with: runtime="accelerate", releases={"accelerate": "0.31.0"}, model="llama-3-8b"
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
        "stage3_prefetch_bucket_size": "auto"}}
    """
    yield from _fractional_bucket(config, integrations.width_for_accelerate)


def _fractional_bucket(
    config: Context, width_of: Callable[[SpecifiedModel, list[KeyPath]], int]
) -> Iterator[FaultFinding]:
    path = ZERO / "stage3_prefetch_bucket_size"
    is_open = config.stage == 3 and value_at(config.as_written, path) == AUTO
    if not is_open or not config.since("0.15.0"):
        return
    try:
        width = width_of(config.facts.named_model, [path])
    except (MissingFact, ReplayStop):
        return
    if type(width) is int and not (0.9 * width * width).is_integer():
        yield FaultFinding(path, f"write {0.9 * width * width:.1f}, which DeepSpeed rejects")
