"""The YAML of ``accelerate config`` that holds a config, names one, or stands in its place."""

from collections.abc import Iterator, Mapping
from typing import Any

from dsconfig.checks.context import Context
from dsconfig.checks.registry import EMBEDDED_IN_YAML, rule
from dsconfig.checks.rule import Finding, fills_auto
from dsconfig.facts import embedded_facts
from dsconfig.report import Effect
from dsconfig.source import plugin_settings

BLOCK = "deepspeed_config"
MOST_SHOWN = 80
"""Characters of a value in a message."""
UNSAID = -1
"""What accelerate takes where a file does not say how many processes there are."""
BARE = " (YAML's word for false)"
BY_TORCHRUN = ", which torchrun takes for no number of processes"


@rule(
    "DSC705",
    Effect.ALTERED,
    also=(Effect.REFUSED, Effect.INERT, Effect.NOTE),
    triggers=EMBEDDED_IN_YAML,
    applies_to=fills_auto,
)
def accelerate_setting(config: Context) -> Iterator[Finding]:
    """A line of accelerate's YAML that accelerate does not take.

    An unknown name in `deepspeed_config` becomes an argument that nobody reads, so the default
    holds; at the top level, or with a value that it cannot read, accelerate stops. Where
    `distributed_type` is another than DEEPSPEED, the block is read by nobody.

    with: name="accelerate.yaml", runtime="accelerate"
    bad:
        distributed_type: DEEPSPEED
        num_processes: 4
        deepspeed_config:
          zero_stge: 3
    good:
        distributed_type: DEEPSPEED
        num_processes: 4
        deepspeed_config:
          zero_stage: 3
    """
    launch = config.document.container
    if not embedded_facts.is_accelerate_config(launch):
        return
    unknown = launch.keys() - plugin_settings.TOP_LEVEL - plugin_settings.FORMER
    for name in unknown:
        yield Finding(
            path=(name,),
            message=f'"{name}" is no setting of an accelerate config: accelerate stops',
            help=config.suggestion(name, plugin_settings.TOP_LEVEL),
            effect=Effect.REFUSED,
            on_key=True,
        )
    block = plugin_settings.block_of(launch)
    for name in block.keys() - plugin_settings.KNOWN:
        yield Finding(
            path=(BLOCK, name),
            message=f'"{name}" is no setting of accelerate\'s DeepSpeed plugin: nothing reads it',
            help=config.suggestion(name, plugin_settings.KNOWN),
            on_key=True,
        )
    yield from _unreadable(config)
    if not unknown:  # what is missing may be there under a name that is misspelt
        yield from _missing(launch)


def _unreadable(config: Context) -> Iterator[Finding]:
    """Values at which the launcher or the plugin stops."""
    launch = config.document.container
    environment = plugin_settings.exported(launch)
    for name in plugin_settings.PATH_OF_SETTING:
        try:
            plugin_settings.read(name, environment)
        except ValueError as error:
            written = plugin_settings.block_of(launch)[name]
            yield Finding(
                path=(BLOCK, name),
                message=f"{name} is {written!r}: accelerate stops ({error})",
                help="write a number",
                effect=Effect.REFUSED,
            )
    mixed, known = launch.get("mixed_precision"), plugin_settings.MIXED
    if mixed is not None and (isinstance(mixed, bool) or str(mixed).lower() not in known):
        help = f"write '{known[0]}' in quotes, {', '.join(known[1:-1])} or {known[-1]}"
        yield _stops("mixed_precision", mixed, help, BARE if mixed is False else "")
    yield from _unfit_kind(launch)
    yield from _uncountable(launch)


def _stops(name: str, value: object, help: str, because: str = "") -> Finding:
    return Finding(
        path=(name,),
        message=f"{name} is {_shown(value)}{because}: accelerate stops",
        help=help,
        effect=Effect.REFUSED,
    )


def _shown(value: object) -> str:
    """A value as it is written, cut where it is long."""
    try:
        shown = repr(value)
    except ValueError:  # an integer, written in hexadecimal, of more digits than Python writes
        return "an integer of thousands of digits"
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."


def _unfit_kind(launch: Mapping[str, Any]) -> Iterator[Finding]:
    """What the launcher starts: where, of which kind, and with a block of settings."""
    where = launch.get("compute_environment", plugin_settings.LOCAL)
    kind, block = launch.get("distributed_type"), launch.get(BLOCK)
    if where != plugin_settings.LOCAL:
        because = ", where it launches no DeepSpeed"
        yield _stops("compute_environment", where, f"write {plugin_settings.LOCAL}", because)
    if isinstance(kind, str) and kind not in plugin_settings.KINDS:
        yield _stops("distributed_type", kind, f"write {plugin_settings.DEEPSPEED}")
    elif "distributed_type" in launch and kind != plugin_settings.DEEPSPEED and block:
        said = "empty" if kind is None else f"{kind}{BARE if kind is False else ''}"
        yield Finding(
            path=("distributed_type",),
            message=f"distributed_type is {said}: deepspeed_config is not read",
            help=f"write {plugin_settings.DEEPSPEED}, or give accelerate launch --use_deepspeed",
            effect=Effect.INERT,
        )
    if block and not isinstance(block, Mapping):
        names = isinstance(block, str)
        help = f"write {{deepspeed_config_file: {block}}}" if names else "write settings below it"
        yield _stops(BLOCK, block, help, ", and no block of settings")


def _missing(launch: Mapping[str, Any]) -> Iterator[Finding]:
    """What accelerate does not start without."""
    if "distributed_type" not in launch:
        yield Finding(
            path=(),
            message="there is no distributed_type: accelerate stops",
            help=f"write distributed_type: {plugin_settings.DEEPSPEED}",
            effect=Effect.REFUSED,
        )
    if launch.get("num_processes") in (None, UNSAID):
        yield Finding(
            path=("num_processes",) if "num_processes" in launch else (),
            message="no num_processes is given: accelerate stops unless --num_processes is",
            help="write how many processes there are",
            effect=Effect.NOTE,
        )


def _uncountable(launch: Mapping[str, Any]) -> Iterator[Finding]:
    """Numbers of processes and machines with which nothing can be started."""
    processes = launch.get("num_processes")
    if processes not in (None, UNSAID) and not plugin_settings.is_count(processes):
        yield _stops("num_processes", processes, "write how many processes there are", BY_TORCHRUN)
    # Who picks hosts by name hands on no number of machines or cards.
    block = plugin_settings.block_of(launch)
    filters = ("deepspeed_inclusion_filter", "deepspeed_exclusion_filter")
    is_standard = block.get("deepspeed_multinode_launcher") == "standard"
    names_hosts = not is_standard and any(block.get(name) is not None for name in filters)
    machines, remedy = launch.get("num_machines", 1), "write how many machines there are"
    if machines is not None and not isinstance(machines, int | float):
        yield _stops("num_machines", machines, remedy, ", no number")
    elif (machines == 0 or machines != machines) and launch.get("use_cpu"):
        because = ", by which it divides the processes on a CPU where nobody sets OMP_NUM_THREADS"
        yield _stops("num_machines", machines, remedy, because)
    elif isinstance(machines, float) and machines > 1 and not names_hosts:
        yield _stops("num_machines", machines, remedy, ", which DeepSpeed and torchrun do not read")
    elif machines is not None and (machines < 1 or machines != machines):
        message = f"num_machines is {_shown(machines)}: accelerate starts one machine"
        yield Finding(("num_machines",), message, help=remedy, effect=Effect.NOTE)


@rule("DSC706", Effect.ALTERED, triggers=EMBEDDED_IN_YAML, applies_to=fills_auto)
def nvme_path_not_launched(config: Context) -> Iterator[Finding]:
    """accelerate's launcher hands on where to offload to, and never the path on the disk.

    The plugin then takes the word `none` for the path, and swap files land in `./none` of the
    working directory. A config file that `deepspeed_config_file` names is read whole.

    with: name="accelerate.yaml", runtime="accelerate"
    bad:
        distributed_type: DEEPSPEED
        deepspeed_config:
          zero_stage: 3
          offload_param_device: nvme
          offload_param_nvme_path: /local_nvme
    good:
        distributed_type: DEEPSPEED
        deepspeed_config:
          zero_stage: 3
          offload_param_device: cpu
    """
    if not config.document.is_generated:
        return
    block = plugin_settings.block_of(config.document.container)
    for what in ("offload_optimizer", "offload_param"):
        if str(block.get(f"{what}_device")).lower() == "nvme":
            name = f"{what}_nvme_path"
            yield Finding(
                path=(BLOCK, name if name in block else f"{what}_device"),
                message=f"accelerate launch does not hand {name} on: swap files land in ./none",
                help="name a config file with nvme_path in deepspeed_config_file, or set "
                f"{plugin_settings.VARIABLES[name][0]} before the launch",
            )
