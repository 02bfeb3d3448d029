"""accelerate's DeepSpeedPlugin: what it does to a config before any model is seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.behaviour.nodes import fill, stage_of
from dsconfig.runtimes.behaviour.outcome import Outcome, Stops, about

PATH_OF_SETTING = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
_VARIABLES = {
    "gradient_accumulation_steps": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", AUTO),
    "gradient_clipping": ("ACCELERATE_GRADIENT_CLIPPING", AUTO),
    "zero_stage": ("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2),
    "offload_optimizer_device": ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none"),
    "offload_param_device": ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none"),
    "offload_optimizer_nvme_path": ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "none"),
    "offload_param_nvme_path": ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "none"),
    "zero3_save_16bit_model": ("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "false"),
}
_IGNORED_WITH_A_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
    "mixed_precision",
)
"""Launch settings that accelerate refuses beside a config file."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """Arguments of the plugin, and the environment variables it reads where one is absent."""

    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    settings: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        found = {name: self._setting(name) for name in _VARIABLES}
        object.__setattr__(self, "settings", found)

    def _setting(self, name: str) -> Any:
        given = self.arguments.get(name)
        if given is not None:
            return given
        variable, default = _VARIABLES[name]
        text = self.environment.get(variable)
        if text is None:
            return default == "true" if name == "zero3_save_16bit_model" else default
        if name == "gradient_accumulation_steps":
            return int(text) if text.isdigit() else text
        if name == "gradient_clipping":
            return text if text == AUTO else float(text)
        if name == "zero_stage":
            return int(text)
        return text.lower() == "true" if name == "zero3_save_16bit_model" else text

    def read_file(self, outcome: Outcome) -> None:
        """Complete the config of a file in place: what the plugin fills, adds and refuses."""
        config = outcome.config
        stage_of(config)
        config.setdefault("gradient_accumulation_steps", 1)
        if "zero_optimization" not in config:
            said = "no zero_optimization in the config; accelerate demands the block"
            raise Stops("ValueError", said, "zero_optimization")
        self._refuse_launch_settings()
        for name, path in PATH_OF_SETTING.items():
            if fill(config, path, self.settings[name]):
                outcome.wrote(
                    path, f"{name} of accelerate's DeepSpeedPlugin (its default or yours)"
                )
        stage_of(config)
        config["steps_per_print"] = float("inf")
        outcome.wrote("steps_per_print", "accelerate switches DeepSpeed's own log off")

    def _refuse_launch_settings(self) -> None:
        listed = self.environment.get("ACCELERATE_CONFIG_DS_FIELDS", "").split(",")
        clashing = [name for name in listed if name in _IGNORED_WITH_A_FILE]
        if clashing:
            said = f"the accelerate config also sets {', '.join(clashing)}, beside a config file"
            raise Stops("ValueError", said)

    def make_config(self, outcome: Outcome) -> None:
        """The config accelerate makes where no file is given."""
        held, config = self.settings, outcome.config
        config.clear()
        config.update(
            train_batch_size=AUTO,
            train_micro_batch_size_per_gpu=AUTO,
            gradient_accumulation_steps=held["gradient_accumulation_steps"],
            zero_optimization={
                "stage": held["zero_stage"],
                "offload_optimizer": self._target("offload_optimizer"),
                "offload_param": self._target("offload_param"),
                "stage3_gather_16bit_weights_on_model_save": held["zero3_save_16bit_model"],
            },
        )
        if held["gradient_clipping"]:
            config["gradient_clipping"] = held["gradient_clipping"]
        config["steps_per_print"] = float("inf")

    def _target(self, what: str) -> dict[str, Any]:
        device = self.settings[f"{what}_device"]
        path = self.settings[f"{what}_nvme_path"] if device == "nvme" else None
        return {"device": device, "nvme_path": path}


def set_mixed_precision(outcome: Outcome, mixed: str, *, rocm: bool = False) -> None:
    """The Accelerator's mixed_precision against the two switches of the config, in place."""
    config = outcome.config
    chosen = {"fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}.get(mixed)
    if chosen is not None and chosen not in config:
        config[chosen] = {"enabled": True} | ({"auto_cast": True} if chosen == "fp16" else {})
        outcome.wrote(f"{chosen}.enabled", f"mixed_precision is {mixed} and the block was absent")
    if chosen is not None:
        other = "bf16" if mixed == "fp16" else "fp16"
        with about(other):
            clash = str(config.get(other, {}).get("enabled", "False")).lower() == "true"
        if clash:
            said = f"mixed_precision is {mixed}, but {other} is on in the config"
            raise Stops("ValueError", said, f"{other}.enabled")
    for dtype in ("fp16", "bf16"):
        if dtype not in config:
            config[dtype] = {"enabled": False}
            outcome.wrote(f"{dtype}.enabled", f"mixed_precision is {mixed}")
        if fill(config, f"{dtype}.enabled", dtype == chosen):
            outcome.wrote(f"{dtype}.enabled", f"mixed_precision is {mixed}")
    if rocm and chosen == "bf16" and "communication_data_type" not in config:
        config["communication_data_type"] = "fp32"
        outcome.wrote("communication_data_type", "bf16 sums can overflow silently on ROCm")
