"""Replay of accelerate's DeepSpeedPlugin, which changes the config before the model exists."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsconfig.batch import STEPS
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import Overrides
from dsconfig.runtimes.integrations import replace_auto, stage_of
from dsconfig.runtimes.replay import Replay, ReplayStop, Source, errors_at
from dsconfig.schema import paths

with lazy_imports():
    from dsconfig.source import override, plugin_settings

if TYPE_CHECKING:
    from dsconfig.facts import Facts

MIXED = "mixed_precision"
REFUSED_WITH_A_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
    MIXED,
)
"""Launch settings that accelerate refuses together with a config file."""


class Plugin:
    """Arguments of the plugin, and environment variables as their defaults."""

    def __init__(self, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.arguments = arguments
        self.environment = environment
        self.settings = {name: self._setting(name) for name in plugin_settings.VARIABLES}

    def is_given(self, name: str) -> bool:
        """Return whether an argument or a variable sets it."""
        return (
            self.arguments.get(name) is not None
            or plugin_settings.VARIABLES[name][0] in self.environment
        )

    def _setting(self, name: str) -> Any:
        given = self.arguments.get(name)
        if given is not None:
            return given
        try:
            return plugin_settings.read(name, self.environment)
        except ValueError as error:
            raise ReplayStop(
                "ValueError", f"{name}: {error}", plugin_settings.PATH_OF_SETTING[name]
            ) from error

    def complete(self, replay: Replay, *, from_file: bool, overrides: Overrides = ()) -> None:
        """Complete the config of a file, or generate one and apply ``overrides``, in place."""
        if from_file:
            self.read_file(replay)
        else:
            replay.config.clear()
            replay.config.update(plugin_settings.generated_config(self.settings))
            replay.config["steps_per_print"] = float("inf")
            override.apply(replay.config, overrides)

    def read_file(self, replay: Replay) -> None:
        """Complete the config of a file in place: fill in, add, refuse."""
        config = replay.config
        stage_of(config)
        if STEPS not in config:
            config[STEPS] = 1
            replay.record(paths.ACCUMULATION, "accelerate's default", Source.DEFAULT)
        if paths.ZERO.name not in config:
            message = "the config has no zero_optimization block, which accelerate requires"
            raise ReplayStop("ValueError", message, paths.ZERO)
        listed = self.environment.get("ACCELERATE_CONFIG_DS_FIELDS", "").split(",")
        clashing = [name for name in listed if name in REFUSED_WITH_A_FILE]
        if clashing:
            message = f"{', '.join(clashing)} must not be set together with deepspeed_config_file"
            keys = (name if name == MIXED else f"deepspeed_config.{name}" for name in clashing)
            raise ReplayStop("ValueError", message, launch_keys=tuple(keys))
        for name, path in plugin_settings.PATH_OF_SETTING.items():
            if replace_auto(config, path, self.settings[name]):
                rule = f"{name} of accelerate's DeepSpeedPlugin"
                replay.record(
                    path, rule, Source.TRAINING if self.is_given(name) else Source.DEFAULT
                )
        stage_of(config)
        config["steps_per_print"] = float("inf")
        rule = "accelerate disables DeepSpeed's own log"
        replay.record(paths.STEPS_PER_PRINT, rule, Source.DEFAULT)


def set_mixed_precision(replay: Replay, mixed: str, *, rocm: bool = False) -> None:
    """Apply the Accelerator's mixed_precision to the config, in place."""
    config = replay.config
    chosen = plugin_settings.PRECISIONS.get(mixed)
    if chosen is not None and chosen not in config:
        config[chosen] = plugin_settings.switched_on(chosen)
        rule = f"mixed_precision is {mixed} and there was no block"
        replay.record(paths.HALF_PRECISIONS[chosen], rule, Source.TRAINING, block_was_absent=True)
    if chosen is not None:
        other = "bf16" if mixed == "fp16" else "fp16"
        with errors_at(paths.ROOT / other):
            clash = str(config.get(other, {}).get("enabled", "False")).lower() == "true"
        if clash:
            message = f"mixed_precision is {mixed}, but {other} is on in the config"
            raise ReplayStop("ValueError", message, paths.HALF_PRECISIONS[other])
    for dtype, path in paths.HALF_PRECISIONS.items():
        if dtype not in config:
            config[dtype] = {"enabled": False}
            replay.record(path, f"mixed_precision is {mixed}", Source.TRAINING)
        if replace_auto(config, path, dtype == chosen):
            replay.record(path, f"mixed_precision is {mixed}", Source.TRAINING)
    if rocm and chosen == "bf16" and "communication_data_type" not in config:
        config["communication_data_type"] = "fp32"
        rule = "bf16 sums can overflow silently on ROCm"
        replay.record(paths.COMMUNICATION_DTYPE, rule, Source.HARDWARE)


def launch_environment(facts: "Facts") -> dict[str, str]:
    """Return the variables of accelerate in a training process.

    Those that are set before the launch, replaced by the settings of the YAML, and these by the
    options of ``accelerate launch``.
    """
    launch, options = facts.launch, facts.launch_options
    found = dict(facts.launch_variables)
    if not launch and not options:
        return found
    uses_deepspeed = plugin_settings.uses_deepspeed(launch, options)
    if uses_deepspeed:
        found |= plugin_settings.exported(launch)
        found |= plugin_settings.exported({"deepspeed_config": options})
    in_yaml: Any = plugin_settings.mixed_precision(launch)
    mixed = options.get(MIXED) or in_yaml
    with errors_at(paths.ROOT / MIXED):
        found["ACCELERATE_MIXED_PRECISION"] = "no" if mixed is None else mixed.lower()
    block = plugin_settings.block_of(launch)
    if uses_deepspeed and (block or options):
        fields = [name for name in block if name != "deepspeed_config_file"]
        if in_yaml is not None and MIXED not in options:
            fields.append(MIXED)
        found["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(fields)
    return found
