"""Rules for accelerate's ``parallelism_config`` and transformers' DistributedConfig."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import EMBEDDED_IN_YAML, TRAINING, rule
from dsconfig.checks.rule import AT_INIT, Finding, Phase, fills_auto, reads_training_arguments
from dsconfig.facts import distributed_config as division
from dsconfig.facts import parallelism
from dsconfig.facts.embedded_facts import is_accelerate_config
from dsconfig.facts.parallelism import BLOCK
from dsconfig.report import Effect
from dsconfig.runtimes.capabilities import ULYSSES_OF_ACCELERATE
from dsconfig.schema.paths import ROOT


@rule(
    "DSC708",
    Effect.REFUSED,
    also=(Effect.ALTERED,),
    triggers=EMBEDDED_IN_YAML,
    applies_to=fills_auto,
    stops="engine",
)
def parallelism_config(config: Context) -> Iterator[Finding]:
    """Invalid `parallelism_config` in an accelerate config

    With `sp_size` above 1, accelerate computes train_batch_size from `dp_shard_size` times
    `dp_replicate_size`, and DeepSpeed from the number of processes divided by `sp_size`; they must
    be equal. accelerate silently ignores a name it does not know (`altered`).

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
            path=ROOT / BLOCK,
            message=f"{BLOCK} is {written!r}, not a mapping: it is ignored",
            help="write a mapping of settings, or delete it",
            effect=Effect.ALTERED,
        )
    for name in (name for name in block if name not in parallelism.KNOWN):
        full_name = parallelism.yaml_name(str(name))
        yield Finding(
            path=ROOT / BLOCK / name,
            message=f'"{name}" is not a setting of accelerate\'s {BLOCK}: it is ignored',
            help=f'did you mean "{full_name}"?'
            if full_name in parallelism.KNOWN
            else config.suggestion(name, parallelism.KNOWN),
            effect=Effect.ALTERED,
            on_key=True,
        )
    sequence = parallelism.yaml_name("sp_size")
    is_divided = type(block.get(sequence)) is int and block[sequence] > 1
    if is_divided and config.version < ULYSSES_OF_ACCELERATE:
        yield Finding(
            path=ROOT / BLOCK / sequence,
            message=f"sp_size requires DeepSpeed {ULYSSES_OF_ACCELERATE}: accelerate raises an "
            "ImportError",
            help=f"use DeepSpeed {ULYSSES_OF_ACCELERATE} or later",
        )
    processes = config.facts.world_size or launch.get("num_processes")
    for violation in parallelism.violations(
        launch, processes if isinstance(processes, int) else None
    ):
        named = parallelism.yaml_name(violation.setting) if violation.setting else ""
        yield Finding(
            path=ROOT / BLOCK / named if named in block else ROOT / BLOCK,
            message=f"{violation.setting or BLOCK} {violation.message}: startup fails",
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
    """Invalid `distributed_config` in TrainingArguments

    transformers 5 shards a model while loading it if the arguments, or their `model_init_kwargs`,
    contain a `distributed_config`. Inconsistent sizes make `from_pretrained` fail. A sharded model
    makes DeepSpeed fail, which cannot move a DTensor (tested with 0.19.8 and transformers 5.23 on
    two ranks, stages 0, 2 and 3). Names unknown to DistributedConfig are silently ignored
    (`altered`).

    with: runtime="transformers", gpus=4, training_args={"model_init_kwargs":
        {"distributed_config": {"tp_size": 3}}}
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    with: runtime="transformers", gpus=4
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    training = config.facts.training
    path = ".".join(division.block_path(training.arguments)) if training else ""
    if training is None or not path:
        return
    block = division.block_of(training.arguments)
    for name in (name for name in block if name not in division.KNOWN):
        yield config.argument_finding(
            f"{path}.{name}",
            " is not a setting of DistributedConfig: transformers ignores it",
            config.suggestion(f"{name}", division.KNOWN),
            effect=Effect.ALTERED,
        )
    violations = list(division.violations(block, config.facts.world_size))
    for violation in violations:
        problem = f" {violation.message}: from_pretrained fails"
        yield config.argument_finding(f"{path}.{violation.setting}", problem, violation.help)
    if not violations and division.divides(block, config.facts.world_size):
        yield config.argument_finding(
            path,
            f" shards the model before DeepSpeed receives it: {AT_INIT}",
            'delete it and let ZeRO shard the model, or set "tensor_parallel"',
            phase=Phase.ENGINE,
        )
