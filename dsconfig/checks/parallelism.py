"""How ranks are divided: accelerate's ``parallelism_config``, transformers' DistributedConfig."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import EMBEDDED_IN_YAML, TRAINING, rule
from dsconfig.checks.rule import AT_INIT, Finding, fills_auto, reads_training_arguments
from dsconfig.facts import distributed_config as division
from dsconfig.facts import parallelism
from dsconfig.facts.embedded_facts import is_accelerate_config
from dsconfig.facts.parallelism import BLOCK
from dsconfig.report import Effect


@rule(
    "DSC708",
    Effect.REFUSED,
    also=(Effect.ALTERED,),
    triggers=EMBEDDED_IN_YAML,
    late=True,
    applies_to=fills_auto,
)
def parallelism_config(config: Context) -> Iterator[Finding]:
    """Sizes in accelerate's `parallelism_config` at which it stops, or DeepSpeed behind it.

    With `sp_size` above 1 accelerate writes train_batch_size from `dp_shard_size` times
    `dp_replicate_size`, and DeepSpeed from the processes divided by `sp_size`: they have to be
    equal. A name that accelerate does not know is `altered`: nothing reads it.

    with: name="accelerate.yaml", runtime="accelerate"
    bad:
        distributed_type: DEEPSPEED
        num_processes: 4
        deepspeed_config: {zero_stage: 3}
        parallelism_config:
          parallelism_config_sp_size: 2
    good:
        distributed_type: DEEPSPEED
        num_processes: 4
        deepspeed_config: {zero_stage: 3}
        parallelism_config:
          parallelism_config_sp_size: 2
          parallelism_config_dp_shard_size: 2
    """
    launch = config.document.container
    if not is_accelerate_config(launch):
        return
    block = parallelism.block_of(launch)
    written = launch.get(BLOCK)
    if written and not block:
        yield Finding(
            path=(BLOCK,),
            message=f"{BLOCK} is {written!r}, no block of settings: nothing reads it",
            help="write settings below it, or delete it",
            effect=Effect.ALTERED,
        )
    for name in (each for each in block if each not in parallelism.KNOWN):
        whole = parallelism.written(str(name))
        yield Finding(
            path=(BLOCK, name),
            message=f'"{name}" is no setting of accelerate\'s {BLOCK}: nothing reads it',
            help=f'did you mean "{whole}"?'
            if whole in parallelism.KNOWN
            else config.suggestion(name, parallelism.KNOWN),
            effect=Effect.ALTERED,
            on_key=True,
        )
    processes = config.facts.world_size or launch.get("num_processes")
    for violation in parallelism.violations(
        launch, processes if isinstance(processes, int) else None
    ):
        named = parallelism.written(violation.setting) if violation.setting else ""
        yield Finding(
            path=(BLOCK, named) if named in block else (BLOCK,),
            message=f"{violation.setting or BLOCK} {violation.said}: the start stops",
            help=violation.help,
            on_key=not violation.setting,
        )


@rule(
    "DSC709",
    Effect.REFUSED,
    also=(Effect.ALTERED,),
    triggers=TRAINING,
    applies_to=reads_training_arguments,
)
def distributed_config(config: Context) -> Iterator[Finding]:
    """The `distributed_config` with which transformers 5 divides a model while it is loaded, among
    the arguments or in their `model_init_kwargs`.

    Sizes that do not fit each other or the processes stop `from_pretrained`, and a model that it
    has divided stops DeepSpeed, which cannot move a DTensor (run with 0.19.8 and transformers 5.23
    on two ranks, stages 0, 2 and 3). A name that DistributedConfig does not have is `altered`: it
    is dropped without a word.

    with: runtime="transformers", world_size=4, training_args={"model_init_kwargs":
        {"distributed_config": {"tp_size": 3}}}
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    with: runtime="transformers", world_size=4
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    training = config.facts.training
    path = ".".join(division.place_of(training.arguments)) if training else ""
    if training is None or not path:
        return
    block = division.block_of(training.arguments)
    for name in (each for each in block if each not in division.KNOWN):
        yield config.argument_finding(
            f"{path}.{name}",
            " is no setting of DistributedConfig: transformers drops it",
            config.suggestion(f"{name}", division.KNOWN),
            effect=Effect.ALTERED,
        )
    violations = list(division.violations(block, config.facts.world_size))
    for violation in violations:
        said = f" {violation.said}: from_pretrained stops"
        yield config.argument_finding(f"{path}.{violation.setting}", said, violation.help)
    if not violations and division.divides(block, config.facts.world_size):
        yield config.argument_finding(
            path,
            f" divides the model among ranks before DeepSpeed has it: {AT_INIT}",
            'leave it out and let ZeRO divide the model, or set "tensor_parallel"',
            late=True,
        )
