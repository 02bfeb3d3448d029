"""accelerate's ``parallelism_config``, beside a config or the settings of its plugin."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import HOLDER, rule
from dsconfig.checks.rule import Finding
from dsconfig.facts import parallelism
from dsconfig.facts.held import is_of_accelerate
from dsconfig.facts.parallelism import BLOCK
from dsconfig.report import Effect
from dsconfig.runtimes.base import Runtime


def _through_accelerate(runtime: Runtime) -> bool:
    return bool(runtime.filled_with)


@rule(
    "DSC708",
    "parallelism-config",
    Effect.REFUSED,
    also=(Effect.ALTERED,),
    wakes=HOLDER,
    late=True,
    holds=_through_accelerate,
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
    launch = config.document.holder
    if not is_of_accelerate(launch):
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
        known = sorted(parallelism.KNOWN)
        alike = whole if whole in known else config.closest(name, known)
        yield Finding(
            path=(BLOCK, name),
            message=f'"{name}" is no setting of accelerate\'s {BLOCK}: nothing reads it',
            help=f'did you mean "{alike}"?' if alike else "delete it",
            effect=Effect.ALTERED,
            on_key=True,
        )
    processes = config.facts.world_size or launch.get("num_processes")
    for breach in parallelism.breaches(launch, processes if isinstance(processes, int) else None):
        named = parallelism.written(breach.setting) if breach.setting else ""
        yield Finding(
            path=(BLOCK, named) if named in block else (BLOCK,),
            message=f"{breach.setting or BLOCK} {breach.said}: the start stops",
            help=breach.help,
            on_key=not breach.setting,
        )
