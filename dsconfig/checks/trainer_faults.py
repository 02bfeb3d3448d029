"""Releases of transformers and accelerate that are known to train something else with DeepSpeed.

Each was found in the thread that its message names, and read in the sources of the first release
that does it, of the last one and of those on either side. They are told where the release is known:
``dsconfig doctor`` looks for what is installed, ``validate --with transformers==4.48.0`` is told.
"""

from collections.abc import Iterator

from dsconfig.batch import STEPS
from dsconfig.checks.context import Context
from dsconfig.checks.known_faults import FaultFinding, fault, lost_steps
from dsconfig.checks.rule import fills_auto_for_script, reads_training_arguments
from dsconfig.report import Effect
from dsconfig.schema.version import Version

ALL_MODELS = Version(4, 48, 0)
"""From here on the Trainer divides the loss itself for every model."""


@fault(
    "DSC846",
    "4.46.0 to 4.46.1",
    "huggingface/transformers#34263",
    "use transformers 4.49.0 or later",
    effect=Effect.NOTE,
    triggers="transformers",
    program="transformers",
    applies_to=reads_training_arguments,
)
def loss_not_divided(config: Context) -> Iterator[FaultFinding]:
    """transformers 4.46.0 and 4.46.1 multiply the loss by the micro steps of a step.

    DeepSpeed divides it by as many, so gradients of a model that does not take the number of tokens
    (`num_items_in_batch`) are sums over the micro steps, and no mean.

    with: runtime="transformers", releases={"transformers": "4.46.1"}
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2}}
    """
    said = "sum gradients over micro steps for models that do not take num_items_in_batch"
    yield from lost_steps(config, (STEPS,), said, 1)


@fault(
    "DSC847",
    "4.46.2 to 4.48.3",
    "huggingface/transformers#35808",
    "use transformers 4.49.0 or later",
    triggers="transformers",
    program="transformers",
    applies_to=reads_training_arguments,
)
def loss_divided_twice(config: Context) -> Iterator[FaultFinding]:
    """transformers 4.46.2 to 4.48.3 divide the loss by the micro steps, and so does DeepSpeed.

    Gradients and their norms are smaller by that factor: clipping acts late, and SGD learns slower.
    Before 4.48.0 that is so for models alone that take the number of tokens
    (`num_items_in_batch`), as most decoders do.

    with: runtime="transformers", releases={"transformers": "4.48.3"}
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2}}
    """
    said = "divide gradients by the micro steps twice"
    sure = Version.parse(config.facts.releases["transformers"]) >= ALL_MODELS
    for told in lost_steps(config, (STEPS,), said, 1):
        of_some = "" if sure else ", for models that take num_items_in_batch"
        yield told._replace(said=told.said + of_some, sure=told.sure and sure)


@fault(
    "DSC848",
    "0.23.0 to 0.25.0",
    "huggingface/accelerate#2304",
    "use accelerate 0.26.0 or later",
    effect=Effect.NOTE,
    triggers="accelerate",
    program="accelerate",
    applies_to=fills_auto_for_script,
)
def schedule_too_slow(config: Context) -> Iterator[FaultFinding]:
    """accelerate 0.23.0 to 0.25.0 hand DeepSpeed the schedule of the script.

    DeepSpeed takes one step of it where accelerate takes as many as there are processes, and by
    which scripts count the steps of their schedule: the rate goes down that much more slowly.

    with: runtime="accelerate", releases={"accelerate": "0.25.0"}, world_size=8
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    with: runtime="accelerate", releases={"accelerate": "0.26.0"}, world_size=8
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    """
    own = config.optimizer is None and config.scheduler is None
    if own and config.facts.world_size != 1:
        yield FaultFinding(
            (), "step the script's own schedule once where accelerate steps it per process"
        )
