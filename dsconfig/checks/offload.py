"""Rules for offload to host memory and NVMe."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import (
    AT_INIT,
    REJECTED,
    Finding,
    reaches_deepspeed,
    reads_training_arguments,
)
from dsconfig.report import Effect
from dsconfig.runtimes.accelerate import release_used
from dsconfig.schema.optimizers import OPTIMIZER_CLASSES
from dsconfig.schema.paths import AIO, OFFLOAD_OPTIMIZER, OPTIMIZER_DEVICE, OPTIMIZER_PARAMS, ZERO
from dsconfig.schema.trainer_optimizers import ADAMW_ON_HOST, KEPT_ON_HOST, trainer_optimizer
from dsconfig.schema.version import Version
from dsconfig.source.pointer import is_block

BLOCKS = ("offload_param", "offload_optimizer")


@rule("DSC431", Effect.ALTERED, also=(Effect.INERT,), triggers="zero_optimization")
def offload_without_device(config: Context) -> Iterator[Finding]:
    """Offload block without `device`

    The default is none, so nothing is offloaded. DeepSpeed's documentation states cpu, which was
    the default up to 0.5.6.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer":
        {"pin_memory": true}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device":
        "cpu", "pin_memory": true}}}
    """
    for name in BLOCKS:
        block = config.get(*ZERO, name)
        if is_block(block) and "device" not in block and config.since("0.7.0"):
            has_effect = any(value is True for value in block.values())
            yield Finding(
                path=ZERO / name,
                message=f"{name} has no device: the default is none, and nothing is offloaded",
                help='add "device": "cpu"',
                effect=None if block and has_effect else Effect.INERT,
                on_key=True,
            )


@rule("DSC432", Effect.REFUSED, triggers="zero_optimization", stops="zero AssertionError")
def nvme_without_path(config: Context) -> Iterator[Finding]:
    """NVMe offload without `nvme_path`

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": {"device":
        "nvme"}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": {"device":
        "nvme", "nvme_path": "/local_nvme"}}}
    """
    if config.stage != 3:
        return
    for name in BLOCKS:
        block = config.block(*ZERO, name)
        if block.get("device") == "nvme" and block.get("nvme_path") is None:
            yield Finding(
                path=ZERO / name / "device",
                message=f"{name} to nvme requires nvme_path: {AT_INIT}",
                help='add "nvme_path": "/local_nvme" (a directory on a local NVMe disk)',
            )


@rule("DSC433", Effect.ALTERED, triggers="zero_optimization", applies_to=reaches_deepspeed)
def nvme_below_stage_3(config: Context) -> Iterator[Finding]:
    """NVMe offload requires ZeRO stage 3

    At stages 1 and 2, DeepSpeed offloads the states to host memory instead.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "nvme", "nvme_path": "/local_nvme"}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device":
        "nvme", "nvme_path": "/local_nvme"}}}
    """
    if config.stage in (1, 2) and config.offload("offload_optimizer") == "nvme":
        yield Finding(
            path=OPTIMIZER_DEVICE,
            message=f"offload_optimizer to nvme at ZeRO stage {config.stage} uses host memory; "
            "the disk "
            "is never used",
            help='set "stage": 3, or write "device": "cpu"',
        )


@rule("DSC434", Effect.INERT, triggers="zero_optimization")
def nvme_path_unused(config: Context) -> Iterator[Finding]:
    """`nvme_path` is unused

    The offload device is not nvme.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": {"device":
        "cpu", "nvme_path": "/local_nvme"}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": {"device":
        "nvme", "nvme_path": "/local_nvme"}}}
    """
    for name in BLOCKS:
        block = config.block(*ZERO, name)
        is_used = block.get("device", "nvme") in ("nvme", "auto")
        if block.get("nvme_path") is not None and not is_used:
            yield Finding(
                path=ZERO / name / "nvme_path",
                message=f"{name}.nvme_path is unused: the device is {block['device']}",
                help='delete it, or write "device": "nvme"',
                on_key=True,
            )


@rule("DSC435", Effect.INERT, triggers="aio")
def aio_without_nvme(config: Context) -> Iterator[Finding]:
    """`aio` without NVMe offload

    It configures reads and writes of NVMe offload.

    bad: {"train_batch_size": 8, "aio": {"block_size": 1048576}}
    good: {"train_batch_size": 8, "aio": {"block_size": 1048576}, "zero_optimization": {"stage": 3,
        "offload_param": {"device": "nvme", "nvme_path": "/local_nvme"}}}
    """
    devices = [config.get(*ZERO, name, "device") for name in BLOCKS]
    fast_writer = config.get("checkpoint", "writer") is not None
    if config.block("aio") and not fast_writer and not {"nvme", "auto"} & set(map(str, devices)):
        yield Finding(
            path=AIO,
            message="aio has no effect: nothing is offloaded to NVMe",
            help="delete it, or offload to nvme",
            on_key=True,
        )


@rule(
    "DSC436",
    Effect.REFUSED,
    triggers="zero_optimization",
    releases="0.15.0 to",
    stops="ValidationError",
)
def partial_offload_needs_stage_3(config: Context) -> Iterator[Finding]:
    """Partial optimizer offload requires ZeRO stage 3

    DeepSpeed rejects `offload_optimizer.ratio` below 1 at other stages since 0.15.0.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu", "ratio": 0.5}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device":
        "cpu", "ratio": 0.5}}}
    """
    block = OFFLOAD_OPTIMIZER
    if config.has(*block) and config.stage != 3 and (ratio := config.in_force(block, "ratio")) < 1:
        yield Finding(
            path=block / "ratio",
            message=f"offload_optimizer.ratio {ratio:g} at ZeRO stage {config.stage}: {REJECTED}; "
            "partial offload requires stage 3",
            help='delete it, or set "stage": 3',
        )


@refusal("DSC437", triggers="zero_optimization", stops="zero AssertionError")
def partial_offload_optimizer(config: Context) -> Iterator[Finding]:
    """Partial optimizer offload requires DeepSpeedCPUAdam

    bad: {"train_batch_size": 8, "optimizer": {"type": "Adagrad", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}
    """
    offloaded = config.offload("offload_optimizer") != "none"
    if config.stage != 3 or not offloaded or config.optimizer is None:
        return
    ratio = config.in_force(OFFLOAD_OPTIMIZER, "ratio")
    if ratio < 1 and not config.builds_cpu_adam:
        yield Finding(
            path=OFFLOAD_OPTIMIZER / "ratio",
            message=f"offload_optimizer.ratio {ratio:g} requires DeepSpeedCPUAdam: {AT_INIT}",
            help="use AdamW without torch_adam",
        )


def _has_amsgrad(config: Context) -> bool:
    """Return whether the optimizer's groups have `amsgrad`; true for an unknown optimizer."""
    known = config.optimizer_type
    if known is None or config.builds_cpu_adam:
        return True
    params = config.block("optimizer", "params")
    built = OPTIMIZER_CLASSES[known.class_in_deepspeed(params, offloaded=True)]
    return "amsgrad" in built.states_with


@refusal("DSC438", triggers="zero_optimization", stops="zero")
def super_offload_without_device(config: Context) -> Iterator[Finding]:
    """`super_offload` cannot be used with this config

    At stage 3 it requires an offload device, Adam, and an NVIDIA GPU (`--device`). It passes the
    optimizer's `amsgrad` to a CPU Adam in its own process: other optimizers do not have it, nor
    does the fused Adam that DeepSpeed uses without offload. With torch's Adam the first step fails.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device":
        "none", "super_offload": true}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device":
        "cpu", "super_offload": true}}}
    """
    path = OFFLOAD_OPTIMIZER
    if config.stage != 3 or not config.is_on(path, "super_offload"):
        return
    device = config.facts.device
    if device is not None and device.kind != "cuda":
        yield Finding(
            path=path / "super_offload",
            message=f"super_offload requires an NVIDIA GPU, not {device.name}: {AT_INIT}",
            help="delete it",
            exception="AssertionError",
        )
    elif config.offload("offload_optimizer") == "none":
        yield Finding(
            path=path / "super_offload",
            message=f"super_offload is on but offload_optimizer.device is none: {AT_INIT}, or "
            "with torch_adam at the first step",
            help='write "device": "cpu"',
        )
    elif not _has_amsgrad(config):
        yield Finding(
            path=path / "super_offload",
            message=f"super_offload requires Adam, but the optimizer is {config.optimizer}: "
            f"{AT_INIT}",
            help="use AdamW, or delete it",
        )


@rule("DSC439", Effect.COSTLY, triggers="optimizer", applies_to=reaches_deepspeed)
def slow_optimizer_under_offload(config: Context) -> Iterator[Finding]:
    """`torch_adam` with optimizer offload is slow

    torch's Adam runs on the CPU instead of DeepSpeed's vectorized kernel.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"torch_adam": true}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    """
    offloaded = config.offload("offload_optimizer") != "none" and config.stage > 0
    adam = config.is_optimizer("Adam", "AdamW")
    if offloaded and adam and config.switch("optimizer", "params", "torch_adam"):
        yield Finding(
            path=OPTIMIZER_PARAMS / "torch_adam",
            message="torch_adam with optimizer offload runs torch's Adam on the CPU, several times "
            "slower than DeepSpeedCPUAdam",
            help="delete torch_adam",
        )


@refusal("DSC440", triggers="zero_optimization", stops="zero ZeRORuntimeException")
def client_optimizer_under_offload(config: Context) -> Iterator[Finding]:
    """Script's optimizer does not support optimizer offload

    DeepSpeed accepts only DeepSpeedCPUAdam and DeepSpeedCPULion, unless
    `zero_force_ds_cpu_optimizer` is false.

    with: client_optimizer="AdamW"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}}, "zero_force_ds_cpu_optimizer": false}
    """
    client = config.facts.client_optimizer
    offloaded = config.offload("offload_optimizer") != "none" and config.stage > 0
    forced = config.get("zero_force_ds_cpu_optimizer")
    if client is None or not offloaded or client in ("DeepSpeedCPUAdam", "DeepSpeedCPULion"):
        return
    if forced is None or forced:
        yield Finding(
            path=OFFLOAD_OPTIMIZER,
            message=f"the script's {client} does not support optimizer offload: {AT_INIT}",
            help='pass DeepSpeedCPUAdam, or set "zero_force_ds_cpu_optimizer": false',
            on_key=True,
        )


@rule(
    "DSC441",
    Effect.ALTERED,
    triggers="zero_optimization",
    applies_to=reads_training_arguments,
)
def optimizer_replaced_under_offload(config: Context) -> Iterator[Finding]:
    """accelerate replaces the Trainer's optimizer under optimizer offload

    It becomes DeepSpeedCPUAdam, with fp32 states, unless `optim` is a 32-bit AdamW, Adagrad or
    Lion, which have a class of DeepSpeed. Others lose a decoupled weight decay. Before 1.2.0,
    accelerate passes DeepSpeedCPUAdam with decoupled decay for every optimizer.

    with: runtime="transformers", gpus=1, training_args={"optim": "paged_adamw_8bit"}
    bad: {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2,
        "offload_optimizer": {"device": "cpu"}}}
    with: runtime="transformers", gpus=1, training_args={"optim": "adamw_torch"}
    good: {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2,
        "offload_optimizer": {"device": "cpu"}}}
    """
    built = trainer_optimizer(config.facts.arguments)
    offloaded = config.offload("offload_optimizer") != "none" and config.stage > 0
    is_kept = config.get("zero_force_ds_cpu_optimizer") is False or config.has("optimizer")
    maps = release_used(config.facts) >= Version(1, 2, 0)
    kept = KEPT_ON_HOST if maps else ADAMW_ON_HOST
    if built is None or not offloaded or is_kept or built.kind.name in kept:
        return
    lost = " and without decoupled weight decay" if maps else ""
    yield config.argument_finding(
        "optim",
        f" becomes DeepSpeedCPUAdam, with fp32 states{lost}: accelerate replaces the optimizer, "
        "because its states are offloaded",
        'set optim to adamw_torch, or "zero_force_ds_cpu_optimizer": false in the config',
    )
