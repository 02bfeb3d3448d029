"""The YAML of ``accelerate config`` that holds a config, names one, or stands in its place."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import HOLDER, rule
from dsconfig.checks.rule import Finding
from dsconfig.facts import held
from dsconfig.report import Effect
from dsconfig.runtimes.base import Runtime
from dsconfig.source import plugin_settings

BLOCK = "deepspeed_config"
MIXED = ("no", "fp16", "bf16", "fp8")


def _through_accelerate(runtime: Runtime) -> bool:
    return bool(runtime.filled_with)


@rule(
    "DSC705",
    "accelerate-setting",
    Effect.ALTERED,
    also=(Effect.REFUSED,),
    wakes=HOLDER,
    holds=_through_accelerate,
)
def accelerate_setting(config: Context) -> Iterator[Finding]:
    """A line of accelerate's YAML that accelerate does not take.

    An unknown name in `deepspeed_config` becomes an argument that nobody reads, so the default
    holds; at the top level, or with a value that it cannot read, accelerate stops.

    with: name="accelerate.yaml", runtime="accelerate"
    bad:
        distributed_type: DEEPSPEED
        deepspeed_config:
          zero_stge: 3
    good:
        distributed_type: DEEPSPEED
        deepspeed_config:
          zero_stage: 3
    """
    launch = config.document.holder
    if not held.is_of_accelerate(launch):
        return
    for name in launch.keys() - plugin_settings.TOP_LEVEL:
        yield Finding(
            path=(name,),
            message=f'"{name}" is no setting of an accelerate config: accelerate stops',
            help=_meant(config, name, plugin_settings.TOP_LEVEL),
            effect=Effect.REFUSED,
            on_key=True,
        )
    block = plugin_settings.block_of(launch)
    for name in block.keys() - plugin_settings.KNOWN:
        yield Finding(
            path=(BLOCK, name),
            message=f'"{name}" is no setting of accelerate\'s DeepSpeed plugin: nothing reads it',
            help=_meant(config, name, plugin_settings.KNOWN),
            on_key=True,
        )
    yield from _unreadable(config)


def _meant(config: Context, name: str, known: frozenset[str]) -> str:
    alike = config.closest(name, sorted(known))
    return f'did you mean "{alike}"?' if alike else "delete it"


def _unreadable(config: Context) -> Iterator[Finding]:
    """Values at which the launcher or the plugin stops."""
    launch = config.document.holder
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
    mixed = launch.get("mixed_precision")
    if mixed is not None and (isinstance(mixed, bool) or str(mixed).lower() not in MIXED):
        bare = " (YAML's word for false)" if mixed is False else ""
        words = ", ".join(MIXED[1:-1])
        yield Finding(
            path=("mixed_precision",),
            message=f"mixed_precision is {mixed!r}{bare}: accelerate stops",
            help=f"write '{MIXED[0]}' in quotes, {words} or {MIXED[-1]}",
            effect=Effect.REFUSED,
        )
    if launch.get("num_processes") == -1:
        yield Finding(
            path=("num_processes",),
            message="num_processes is -1: accelerate stops unless --num_processes is given",
            help="write how many processes there are",
            effect=Effect.NOTE,
        )


@rule("DSC706", "nvme-path-not-launched", Effect.ALTERED, wakes=HOLDER, holds=_through_accelerate)
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
    if not config.document.is_made:
        return
    block = plugin_settings.block_of(config.document.holder)
    for what in ("offload_optimizer", "offload_param"):
        if str(block.get(f"{what}_device")).lower() == "nvme":
            name = f"{what}_nvme_path"
            yield Finding(
                path=(BLOCK, name if name in block else f"{what}_device"),
                message=f"accelerate launch does not hand {name} on: swap files land in ./none",
                help="name a config file with nvme_path in deepspeed_config_file, or set "
                f"{plugin_settings.VARIABLES[name][0]} before the launch",
            )
