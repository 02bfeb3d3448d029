"""An accelerate script: plugin, Accelerator, ``prepare``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from dsconfig.facts import Facts
from dsconfig.runtimes.behaviour.outcome import MissingFact, Outcome
from dsconfig.runtimes.behaviour.plugin import Plugin, set_mixed_precision
from dsconfig.runtimes.behaviour.prepare import Script, prepare

if TYPE_CHECKING:
    from dsconfig.runtimes.accelerate import Accelerate

_MIXED = {"fp16": "fp16", "bf16": "bf16", "fp32": "no"}
_OPTIMIZER = {"dummy": "dummy", "DummyOptim": "dummy", "none": None}
_SCHEDULER = {"dummy": "dummy", "DummyScheduler": "dummy", "none": None}


def run(outcome: Outcome, facts: Facts, runtime: "Accelerate") -> None:
    """Replay up to the call of ``deepspeed.initialize``."""
    if facts.world_size is None:
        raise MissingFact("", "the number of processes is unknown", "give --gpus")
    environment = {**launched(facts.launch, with_file=runtime.config_file), **runtime.environment}
    plugin = Plugin(runtime.plugin, environment)
    if runtime.config_file:
        plugin.read_file(outcome)
    else:
        plugin.make_config(outcome)
    kind = facts.device.kind if facts.device else "cuda"
    set_mixed_precision(outcome, _mixed(facts, runtime), rocm=kind == "rocm")
    prepare(outcome, _script(outcome, facts, runtime, environment))
    _remark(outcome, facts)


def launched(launch: Mapping[str, Any], *, with_file: bool) -> dict[str, str]:
    """The variables ``accelerate launch`` sets from its config file."""
    block = launch.get("deepspeed_config")
    if not isinstance(block, dict):
        return {}
    held = cast(dict[str, Any], block)
    named = {
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": held.get("gradient_accumulation_steps"),
        "ACCELERATE_GRADIENT_CLIPPING": held.get("gradient_clipping"),
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": held.get("zero_stage"),
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": held.get("offload_optimizer_device"),
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": held.get("offload_param_device"),
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH": held.get("offload_optimizer_nvme_path"),
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH": held.get("offload_param_nvme_path"),
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": held.get("zero3_save_16bit_model"),
    }
    found = {name: str(value) for name, value in named.items() if value is not None}
    if with_file:
        fields = [name for name in held if name != "deepspeed_config_file"]
        if "mixed_precision" in launch:
            fields.append("mixed_precision")
        found["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(fields)
    return found


def _mixed(facts: Facts, runtime: "Accelerate") -> str:
    if runtime.mixed_precision is not None:
        return runtime.mixed_precision
    asked = facts.training.precision if facts.training else None
    return _MIXED[asked] if asked else "no"


def _script(
    outcome: Outcome, facts: Facts, runtime: "Accelerate", environment: Mapping[str, str]
) -> Script:
    training, config = facts.training, outcome.config
    micro = training.micro_batch_size if training else None
    sizes = runtime.batch_sizes
    if sizes is None:
        sizes = (micro,) if micro is not None else ()
    steps = (training and training.gradient_accumulation_steps) or 1
    # The Accelerator reads this variable too, and it wins over its argument.
    steps = int(environment.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps))
    optimizer = runtime.optimizer or ("dummy" if "optimizer" in config else "torch")
    scheduler = runtime.scheduler or ("dummy" if "scheduler" in config else "none")
    rate = training.learning_rate if training else None
    optimizer = _OPTIMIZER.get(optimizer, "torch")
    return Script(
        processes=facts.world_size or 1,
        accumulation=steps,
        batch_sizes=sizes,
        model=facts.model,
        optimizer=optimizer,
        scheduler=_SCHEDULER.get(scheduler, "torch"),
        learning_rate=rate,
        weight_decay=training.weight_decay if training else None,
        scheduled_lr=rate if optimizer is not None else None,
        warmup_steps=(training and training.warmup_steps) or 0,
        total_steps=training.total_steps if training else None,
        split_batches=runtime.split_batches,
        smallest_batch=runtime.plugin.get("is_train_batch_min", True),
        sequence_parallel=facts.sequence_parallel,
    )


def _remark(outcome: Outcome, facts: Facts) -> None:
    """Where accelerate does something that nobody wants, beside the values it fills."""
    from dsconfig.runtimes.behaviour.remarks import after_accelerate

    after_accelerate(outcome, facts)
