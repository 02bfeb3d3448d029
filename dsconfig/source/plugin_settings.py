"""Settings of accelerate's DeepSpeedPlugin and the ds_config it generates from them.

``accelerate launch`` exports the ``deepspeed_config`` block of its YAML as environment variables.
The plugin reads them and, if no file is named, generates a config. The plugin also reads variables
for NVMe paths, which the launcher never sets.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from dsconfig.schema import paths
from dsconfig.schema.markers import AUTO
from dsconfig.schema.paths import KeyPath

PATH_OF_SETTING: Mapping[str, KeyPath] = {
    "gradient_accumulation_steps": paths.ACCUMULATION,
    "gradient_clipping": paths.GRADIENT_CLIPPING,
    "zero_stage": paths.STAGE,
    "offload_optimizer_device": paths.OPTIMIZER_DEVICE,
    "offload_param_device": paths.PARAM_DEVICE,
    "offload_param_nvme_path": paths.PARAM_NVME,
    "offload_optimizer_nvme_path": paths.OPTIMIZER_NVME,
    "zero3_save_16bit_model": paths.GATHERED_ON_SAVE,
}
VARIABLES: Mapping[str, tuple[str, Any]] = {
    "gradient_accumulation_steps": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", AUTO),
    "gradient_clipping": ("ACCELERATE_GRADIENT_CLIPPING", AUTO),
    "zero_stage": ("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2),
    "offload_optimizer_device": ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none"),
    "offload_param_device": ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none"),
    "offload_optimizer_nvme_path": ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "none"),
    "offload_param_nvme_path": ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "none"),
    "zero3_save_16bit_model": ("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "false"),
}
"""By setting: its environment variable, and the default."""
NOT_LAUNCHED = frozenset(("offload_optimizer_nvme_path", "offload_param_nvme_path"))
"""Settings that the launcher accepts but does not export."""
OTHERS = frozenset(
    (
        "deepspeed_config_file",
        "deepspeed_exclusion_filter",
        "deepspeed_hostfile",
        "deepspeed_inclusion_filter",
        "deepspeed_moe_layer_cls_names",
        "deepspeed_multinode_launcher",
        "zero3_init_flag",
    )
)
"""Settings of the block that do not reach a ds_config."""
SETTING_OF_KEY = {
    path.name: name for name, path in PATH_OF_SETTING.items() if not name.startswith("offload_")
}
"""Settings by name of the key that they generate, where the name belongs to one key only."""
KNOWN = OTHERS | PATH_OF_SETTING.keys()
OWN = KNOWN - {"gradient_accumulation_steps", "gradient_clipping"}
"""Settings that are not ds_config keys."""
TOP_LEVEL = frozenset(
    (
        "command_file",
        "commands",
        "compute_environment",
        "debug",
        "deepspeed_config",
        "distributed_type",
        "downcast_bf16",
        "dynamo_config",
        "enable_cpu_affinity",
        "fp8_config",
        "fsdp_config",
        "gpu_ids",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "megatron_lm_config",
        "mixed_precision",
        "mpirun_config",
        "num_machines",
        "num_processes",
        "parallelism_config",
        "rdzv_backend",
        "same_network",
        "tpu_env",
        "tpu_name",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "tpu_vm",
        "tpu_zone",
        "use_cpu",
    )
)
"""Other top-level keys of the YAML; accelerate rejects unknown ones."""

FORMER = frozenset(("dynamo_backend", "fp16"))
"""Old key names that accelerate still accepts."""
KINDS = frozenset(
    (
        *("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA"),
        *("MULTI_XPU", "MULTI_HPU", "MULTI_NEURON", "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM"),
    )
)
"""Values of ``distributed_type``."""
DEEPSPEED = "DEEPSPEED"
LOCAL = "LOCAL_MACHINE"
"""The ``compute_environment`` for which accelerate launches DeepSpeed."""

DISTINCTIVE = frozenset(("compute_environment", "distributed_type", "main_training_function"))
"""Keys that only accelerate's YAML has."""


def is_accelerate_config(names: Iterable[str], block: Iterable[str] | None) -> bool:
    """Return whether a YAML with these keys, and ``deepspeed_config`` keys, is accelerate's.

    ``block`` is None if ``deepspeed_config`` is a text: accelerate's is a block.
    """
    names = frozenset(names)
    if DISTINCTIVE & names or len(TOP_LEVEL & names) > 2:
        return True
    if block is None or "deepspeed_config" not in names:
        return False
    block = frozenset(block)
    return block <= KNOWN or bool(block & OWN)


def is_launched_with(launch: Mapping[str, Any]) -> bool:
    """Return whether accelerate uses DeepSpeed with this YAML, also with default settings."""
    return bool(block_of(launch)) or launch.get("distributed_type") == DEEPSPEED


TORCHRUN_KEYWORDS = frozenset(("auto", "cpu", "gpu", "xpu"))


def is_count(processes: object) -> bool:
    """Return whether torchrun accepts a process count: an integer >= 1 or a keyword."""
    try:
        text = str(processes)
        return text in TORCHRUN_KEYWORDS or int(text) > 0
    except ValueError:  # not a number, or one with too many digits for Python
        return False


_OTHER_LAUNCHES = ("cpu", "multi_gpu", "use_fsdp", "use_megatron_lm", "tpu", "tpu_use_cluster")


def turned_off_by(options: Mapping[str, Any]) -> str:
    """Return the option of ``accelerate launch`` with which it ignores the type of launch in its
    YAML, and so DeepSpeed (commands/launch.py, ``_validate_launch_command``); empty if none."""
    named = (name for name in _OTHER_LAUNCHES if options.get(name) is True)
    return "" if options.get("use_deepspeed") else next(named, "")


def settings_of_variables(variables: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the options of ``accelerate launch`` that export the same variables; empty unless they
    turn DeepSpeed on. Raises ValueError for a value that the plugin rejects."""
    known = {name: value for name, value in variables.items() if value is not None}
    if known.get("ACCELERATE_USE_DEEPSPEED", "").lower() not in ("true", "1"):
        return {}
    names = (name for name, (variable, _) in VARIABLES.items() if variable in known)
    found = {"use_deepspeed": True, **{name: read(name, known) for name in names}}
    others = {
        "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
        "mixed_precision": "ACCELERATE_MIXED_PRECISION",
    }
    return found | {name: known[at] for name, at in others.items() if at in known}


def uses_deepspeed(launch: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Return whether ``accelerate launch`` starts DeepSpeed with this YAML and these options."""
    if turned_off_by(options):
        return False
    kind = launch.get("distributed_type", DEEPSPEED if block_of(launch) else None)
    return bool(options.get("use_deepspeed")) or kind == DEEPSPEED


def launch_of_options(
    options: Mapping[str, Any], launch: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return accelerate's YAML, empty without one, completed with options of its launcher, which
    take precedence; empty without a setting of DeepSpeed among them."""
    launch = launch or {}
    block = {name: value for name, value in options.items() if name in KNOWN}
    uses = options.get("use_deepspeed") is True or is_launched_with(launch)
    if not uses or not (block or options.get("use_deepspeed")):
        return {}
    top = {name: value for name, value in options.items() if name in TOP_LEVEL}
    settings = {**block_of(launch), **block}
    return {**launch, **top, "distributed_type": DEEPSPEED, "deepspeed_config": settings}


def mixed_precision(launch: Mapping[str, Any]) -> Any:
    """Return ``mixed_precision``, or fp16 for the old setting ``fp16: true``."""
    if "mixed_precision" not in launch:
        return "fp16" if launch.get("fp16") else None
    return launch["mixed_precision"]


PRECISIONS: Mapping[str, str] = {"fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
"""The ds_config block that the Accelerator enables for a ``mixed_precision``."""
MIXED = ("no", *PRECISIONS)
"""Values of ``mixed_precision`` (case-insensitive)."""


def switched_on(block: str) -> dict[str, Any]:
    """Return the block that the Accelerator adds for a precision missing in the config."""
    return {"enabled": True} | ({"auto_cast": True} if block == "fp16" else {})


def block_of(launch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the ``deepspeed_config`` block of accelerate's YAML, or an empty mapping."""
    block = launch.get("deepspeed_config")
    return cast("Mapping[str, Any]", block) if isinstance(block, Mapping) else {}


def exported(launch: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that ``accelerate launch`` sets from its YAML."""
    block = block_of(launch)
    return {
        VARIABLES[name][0]: _as_launched(name, block[name])
        for name in PATH_OF_SETTING
        if name not in NOT_LAUNCHED and block.get(name) is not None
    }


def _as_launched(name: str, value: Any) -> str:
    return (
        str(value) if name in ("zero_stage", "gradient_accumulation_steps") else f"{value}".lower()
    )


_QUOTED_KEY = re.compile(r'"(\w+)"(: [\w.+-]+)?( to zero_optimization)?')
_PRECISION = re.compile(r'"(bf16|fp16)": \{"enabled": true\}')
NO_SETTING = "this YAML has no setting for it: write a config file and name it in "
"""Begins the remedy for keys that no setting generates."""


def in_settings(remedy: str, is_key: Callable[[str], bool]) -> str:
    """Return a remedy that names keys of a generated config with the settings to edit instead."""
    remedy = _PRECISION.sub(r"mixed_precision: \1", remedy)
    found = [match[1] for match in _QUOTED_KEY.finditer(remedy) if is_key(match[1])]
    if all(name in SETTING_OF_KEY for name in found):
        return _QUOTED_KEY.sub(_as_setting, remedy)
    return f"{remedy}; {NO_SETTING}deepspeed_config_file"


def _as_setting(match: re.Match[str]) -> str:
    setting = SETTING_OF_KEY.get(match[1])
    return match[0] if setting is None else f"deepspeed_config.{setting}{match[2] or ''}"


def read(name: str, environment: Mapping[str, str]) -> Any:
    """Read a setting as the plugin does, including its ValueErrors."""
    variable, default = VARIABLES[name]
    text = environment.get(variable)
    if text is None:
        return default == "true" if name == "zero3_save_16bit_model" else default
    if name == "gradient_accumulation_steps":
        return int(text) if text.isdigit() else text
    if name == "gradient_clipping":
        return text if text == AUTO else float(text)
    if name == "zero_stage":
        return int(text)
    return text.lower() == "true" if name == "zero3_save_16bit_model" else text


def generated_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that the plugin generates if no file is named."""
    config: dict[str, Any] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": settings["gradient_accumulation_steps"],
        "zero_optimization": {
            "stage": settings["zero_stage"],
            "offload_optimizer": _target(settings, "offload_optimizer"),
            "offload_param": _target(settings, "offload_param"),
            "stage3_gather_16bit_weights_on_model_save": settings["zero3_save_16bit_model"],
        },
    }
    if settings["gradient_clipping"]:
        config["gradient_clipping"] = settings["gradient_clipping"]
    return config


def _target(settings: Mapping[str, Any], what: str) -> dict[str, Any]:
    device = settings[f"{what}_device"]
    path = settings[f"{what}_nvme_path"] if device == "nvme" else None
    return {"device": device, "nvme_path": path}


def config_of_launch(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that reaches DeepSpeed if accelerate's YAML does not name a file.

    A setting that the plugin cannot parse is kept as written; a rule reports it.
    """
    environment = exported(launch)
    config = generated_config({name: _read_or_written(name, environment) for name in VARIABLES})
    block = PRECISIONS.get(str(mixed_precision(launch)).lower())
    return config if block is None else {**config, block: switched_on(block)}


def _read_or_written(name: str, environment: Mapping[str, str]) -> Any:
    try:
        return read(name, environment)
    except ValueError:
        return environment[VARIABLES[name][0]]
