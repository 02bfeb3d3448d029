"""Rules for the YAML file of ``accelerate config`` that contains or names a config."""

from collections.abc import Iterator, Mapping
from typing import Any

from dsconfig.batch import STEPS
from dsconfig.checks.context import Context
from dsconfig.checks.registry import EMBEDDED_IN_YAML, rule
from dsconfig.checks.rule import Finding, fills_auto, fills_auto_for_script
from dsconfig.facts import embedded_facts, yaml_text
from dsconfig.report import Effect
from dsconfig.runtimes.accelerate import release_used
from dsconfig.runtimes.base import AUTO
from dsconfig.schema.key_index import paths_of
from dsconfig.schema.paths import ROOT
from dsconfig.schema.version import Version
from dsconfig.source import plugin_settings
from dsconfig.source.from_yaml import SUFFIXES

BLOCK, CONFIG_FILE = "deepspeed_config", "deepspeed_config_file"
MOST_SHOWN = 80
"""Maximum length of a value in a message."""
UNSET_PROCESSES = -1
"""accelerate's default of num_processes."""
YAML_FALSE = " (false in YAML)"
BY_TORCHRUN = ", which torchrun rejects as a number of processes"


@rule(
    "DSC705",
    Effect.ALTERED,
    also=(Effect.REFUSED, Effect.INERT, Effect.NOTE),
    triggers=EMBEDDED_IN_YAML,
    applies_to=fills_auto,
)
def accelerate_setting(config: Context) -> Iterator[Finding]:
    """Invalid setting in an accelerate config

    accelerate ignores an unknown name in `deepspeed_config` and uses the default. It rejects an
    unknown name at the top level, and values it cannot parse. If `distributed_type` is not
    DEEPSPEED, the block is ignored. Before 1.5.0, settings in the block replace the same options of
    `accelerate launch`.

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
    for found in _invalid_settings(config, config.document.container):
        yield _in_its_file(config, found)


def _in_its_file(config: Context, found: Finding) -> Finding:
    """Return a finding at its key of the YAML that names the config."""
    file = config.document.named_in
    if file is None:
        return found
    place = yaml_text.key_range(file, found.path.dotted)
    return found._replace(file=file, range=place, in_other_file=place is None)


def _invalid_settings(config: Context, launch: Mapping[str, Any]) -> Iterator[Finding]:
    if not embedded_facts.is_accelerate_config(launch):
        return
    unknown = launch.keys() - plugin_settings.TOP_LEVEL - plugin_settings.FORMER
    for name in unknown:
        yield Finding(
            path=ROOT / name,
            message=f'"{name}" is not an accelerate setting: accelerate rejects the config',
            help=f"write it in {BLOCK}"
            if name in plugin_settings.KNOWN
            else config.suggestion(name, plugin_settings.TOP_LEVEL),
            effect=Effect.REFUSED,
            on_key=True,
        )
    block = plugin_settings.block_of(launch)
    for name in block.keys() - plugin_settings.KNOWN:
        yield Finding(
            path=ROOT / BLOCK / name,
            message=f'"{name}" is not a setting of accelerate\'s DeepSpeed plugin: it is ignored',
            help=_help_in_block(config, name, block[name]),
            on_key=True,
        )
    yield from _unreadable(config)
    options = config.facts.launch_options
    if plugin_settings.uses_deepspeed(launch, options):
        yield from _several_machines(config, {**launch, **options})
    release = release_used(config.facts)
    yield from _unneeded(config, launch, release)
    if release < OPTIONS_WIN:
        written = config.document.launcher.settings or launch
        yield from _lost_options(plugin_settings.block_of(written), options)
    # A missing setting may be present under a misspelled name; variables replace the YAML.
    launcher = config.document.launcher
    is_replaced = not launcher.file and "ACCELERATE_USE_DEEPSPEED" in launcher.variables
    if not unknown and not is_replaced:
        yield from _missing(launch)


def _help_in_block(config: Context, name: str, value: object) -> str:
    """Return the help for an unknown setting, which may be a config file or a key of one."""
    if isinstance(value, str) and value.endswith(SUFFIXES):
        return f'write it as "{CONFIG_FILE}"'
    if paths_of(name) and config.closest(name, plugin_settings.KNOWN) is None:
        return f'write it in a ds_config, and name that file in "{CONFIG_FILE}"'
    return config.suggestion(name, plugin_settings.KNOWN)


def _unreadable(config: Context) -> Iterator[Finding]:
    """Yield values that the launcher or the plugin rejects."""
    launch = config.document.container
    environment = plugin_settings.exported(launch)
    for name in plugin_settings.PATH_OF_SETTING:
        try:
            plugin_settings.read(name, environment)
        except ValueError as error:
            written = plugin_settings.block_of(launch)[name]
            yield Finding(
                path=ROOT / BLOCK / name,
                message=f"{name} is {written!r}: accelerate raises an error ({error})",
                help="write a number",
                effect=Effect.REFUSED,
            )
    if plugin_settings.block_of(launch).get(STEPS) == AUTO:
        yield Finding(
            path=ROOT / BLOCK / STEPS,
            message=f'{STEPS} is "auto": Accelerator() converts it to an integer and raises '
            "ValueError",
            help="write a number",
            effect=Effect.REFUSED,
            applies_to=fills_auto_for_script,
        )
    mixed, known = launch.get("mixed_precision"), plugin_settings.MIXED
    if mixed is not None and (isinstance(mixed, bool) or str(mixed).lower() not in known):
        help = f"write '{known[0]}' in quotes, {', '.join(known[1:-1])} or {known[-1]}"
        yield _refused("mixed_precision", mixed, help, YAML_FALSE if mixed is False else "")
    yield from _invalid_type(launch)
    yield from _invalid_counts(launch)


def _refused(name: str, value: object, help: str, reason: str = "") -> Finding:
    return Finding(
        path=ROOT / name,
        message=f"{name} is {_shown(value)}{reason}: accelerate raises an error",
        help=help,
        effect=Effect.REFUSED,
    )


def _shown(value: object) -> str:
    """Return a value as text, truncated if long."""
    try:
        shown = repr(value)
    except ValueError:  # a hexadecimal integer above Python's limit of digits
        return "an integer of thousands of digits"
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."


def _invalid_type(launch: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield problems of the environment, the type and the block of settings."""
    environment = launch.get("compute_environment", plugin_settings.LOCAL)
    kind, block = launch.get("distributed_type"), launch.get(BLOCK)
    if environment != plugin_settings.LOCAL:
        reason = ", which does not support DeepSpeed"
        yield _refused("compute_environment", environment, f"write {plugin_settings.LOCAL}", reason)
    if isinstance(kind, str) and kind not in plugin_settings.KINDS:
        yield _refused("distributed_type", kind, f"write {plugin_settings.DEEPSPEED}")
    elif "distributed_type" in launch and kind != plugin_settings.DEEPSPEED and block:
        written = "empty" if kind is None else f"{kind}{YAML_FALSE if kind is False else ''}"
        yield Finding(
            path=ROOT / "distributed_type",
            message=f"distributed_type is {written}: deepspeed_config is ignored",
            help=f"write {plugin_settings.DEEPSPEED}, or pass --use_deepspeed to accelerate launch",
            effect=Effect.INERT,
        )
    if block and not isinstance(block, Mapping):
        names = isinstance(block, str)
        help = (
            f"write {{deepspeed_config_file: {block}}}" if names else "write a mapping of settings"
        )
        yield _refused(BLOCK, block, help, ", not a mapping")


def _several_machines(config: Context, launch: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what keeps the machines of a run apart; ``launch``: the settings and options in
    force."""
    machines, processes = launch.get("num_machines"), launch.get("num_processes")
    if type(machines) is not int or machines < 2:
        return
    block = {**plugin_settings.block_of(launch), **launch}
    if None in map(block.get, block.keys() & plugin_settings.OTHERS):
        return  # an option whose value only the run knows
    starter = block.get("deepspeed_multinode_launcher") or "pdsh"
    if starter != "standard" and not block.get("deepspeed_hostfile"):
        default = "" if block.get("deepspeed_multinode_launcher") else " by default"
        yield Finding(
            path=ROOT / "num_machines",
            message=f"num_machines is {machines}, but deepspeed_multinode_launcher is "
            f"{starter}{default} and there is no deepspeed_hostfile: DeepSpeed trains on one "
            "machine",
            help="write deepspeed_multinode_launcher: standard and start the command on every "
            "machine, or set deepspeed_hostfile",
        )
    if starter == "nossh" and not config.since("0.14.5"):
        yield Finding(
            path=ROOT / BLOCK / "deepspeed_multinode_launcher",
            message="deepspeed_multinode_launcher is nossh, which requires DeepSpeed 0.14.5: "
            "accelerate raises an error",
            help="write standard, and start the command on every machine",
            effect=Effect.REFUSED,
        )
    if type(processes) is int and processes % machines and processes > machines:
        each = processes // machines
        yield Finding(
            path=ROOT / "num_processes",
            message=f"num_processes is {processes}, and num_machines is {machines}: accelerate "
            f"starts {each} per machine, {each * machines} in total",
            help="write a multiple of num_machines",
        )


def _lost_options(block: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield options of the command that settings of the YAML replace."""
    for name in sorted(block.keys() & options.keys()):
        is_same = str(options[name]).lower() == str(block[name]).lower()
        if options[name] is not None and not is_same:
            yield Finding(
                path=ROOT / BLOCK / name,
                message=f"{name} is {_shown(block[name])}, and --{name} is {_shown(options[name])}:"
                " accelerate before 1.5.0 uses the YAML",
                help="delete it from the YAML, or use accelerate 1.5.0 or later",
            )


OPTIONS_WIN = Version(1, 5, 0)
"""First accelerate release in which options replace settings inside blocks of the YAML."""


def _unneeded(config: Context, launch: Mapping[str, Any], release: Version) -> Iterator[Finding]:
    """Yield settings that a release ignores."""
    is_off = plugin_settings.block_of(launch).get("zero3_init_flag") is False
    if is_off and config.stage == 3 and release >= INIT_FLAG_UNUSED:
        yield Finding(
            path=ROOT / BLOCK / "zero3_init_flag",
            message="zero3_init_flag is false, which has no effect since accelerate 1.0.0: at "
            "stage 3, from_pretrained shards the weights as it loads them",
            help="delete it",
            effect=Effect.INERT,
        )


INIT_FLAG_UNUSED = Version(1, 0, 0)
"""First accelerate release that sets up zero.Init at stage 3 whatever the flag is."""


def _missing(launch: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield settings that accelerate requires."""
    if "distributed_type" not in launch:
        yield Finding(
            path=ROOT,
            message="distributed_type is missing: accelerate raises an error",
            help=f"write distributed_type: {plugin_settings.DEEPSPEED}",
            effect=Effect.REFUSED,
        )
    if launch.get("num_processes") in (None, UNSET_PROCESSES):
        yield Finding(
            path=ROOT / "num_processes" if "num_processes" in launch else ROOT,
            message="num_processes is missing: accelerate raises an error without --num_processes",
            help="set num_processes",
            effect=Effect.NOTE,
        )


def _invalid_counts(launch: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield invalid numbers of processes and machines."""
    processes = launch.get("num_processes")
    if processes not in (None, UNSET_PROCESSES) and not plugin_settings.is_count(processes):
        yield _refused("num_processes", processes, "write a positive integer", BY_TORCHRUN)
    # A launcher that selects hosts by name does not pass the number of machines on.
    block = plugin_settings.block_of(launch)
    filters = ("deepspeed_inclusion_filter", "deepspeed_exclusion_filter")
    is_standard = block.get("deepspeed_multinode_launcher") == "standard"
    names_hosts = not is_standard and any(block.get(name) is not None for name in filters)
    machines, help = launch.get("num_machines", 1), "write a positive integer"
    if machines is not None and not isinstance(machines, int | float):
        yield _refused("num_machines", machines, help, ", not a number")
    elif (machines == 0 or machines != machines) and launch.get("use_cpu"):
        reason = ", a divisor of the processes on a CPU unless OMP_NUM_THREADS is set"
        yield _refused("num_machines", machines, help, reason)
    elif isinstance(machines, float) and machines > 1 and not names_hosts:
        yield _refused("num_machines", machines, help, ", which DeepSpeed and torchrun reject")
    elif machines is not None and (machines < 1 or machines != machines):
        message = f"num_machines is {_shown(machines)}: accelerate uses one machine"
        yield Finding(ROOT / "num_machines", message, help=help, effect=Effect.NOTE)


@rule("DSC706", Effect.ALTERED, triggers=EMBEDDED_IN_YAML, applies_to=fills_auto)
def nvme_path_not_passed(config: Context) -> Iterator[Finding]:
    """accelerate's launcher drops the NVMe path

    It passes the offload device on to the training processes, but not the path. The plugin then
    uses the string `none` as the path, and swap files are written to `./none` in the working
    directory. A config named by `deepspeed_config_file` is not affected.

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
    for offload in ("offload_optimizer", "offload_param"):
        if str(block.get(f"{offload}_device")).lower() == "nvme":
            name = f"{offload}_nvme_path"
            yield Finding(
                path=ROOT / BLOCK / (name if name in block else f"{offload}_device"),
                message=f"accelerate launch does not pass {name} on: swap files are written to "
                "./none",
                help="name a config file with nvme_path in deepspeed_config_file, or set "
                f"{plugin_settings.VARIABLES[name][0]} before the launch",
            )
