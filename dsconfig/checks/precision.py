"""Rules for fp16, bf16 and 16-bit master weights."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import AT_INIT, REJECTED, Finding, not_fills_auto
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO, AutoHandling, Runtime
from dsconfig.schema.paths import BF16, BFLOAT16, FP16, FP16_ENABLED, ROOT, KeyPath
from dsconfig.source.edit import as_fix, replace_value
from dsconfig.source.pointer import value_at


@rule("DSC301", Effect.REFUSED, triggers="fp16", releases="0.6.0 to", stops="bf16 AssertionError")
def fp16_with_bf16(config: Context) -> Iterator[Finding]:
    """`fp16` and `bf16` are both enabled

    bad: {"train_batch_size": 8, "fp16": {"enabled": true}, "bf16": {"enabled": true}}
    good: {"train_batch_size": 8, "fp16": {"enabled": false}, "bf16": {"enabled": true}}
    """

    def reads_as_written(runtime: Runtime) -> bool:
        """Return whether the program leaves both values unchanged."""
        return all(
            config.get(block, "enabled") != AUTO
            or runtime.on_auto((block, "enabled"), config.as_written) is not AutoHandling.FILLED
            for block in ("fp16", "bf16")
        )

    # TrainingArguments with both are refused as such.
    is_open = all(
        value_at(config.as_written, (block, "enabled")) == AUTO for block in ("fp16", "bf16")
    )
    if config.fp16 and config.bf16 and not is_open:
        edits = replace_value(config.document, "/fp16/enabled", False)
        yield Finding(
            path=FP16_ENABLED,
            names=(FP16_ENABLED, ROOT / config.bf16_block / "enabled"),
            message=f"fp16 and {config.bf16_block} are both enabled: {REJECTED}",
            help='keep bf16 on GPUs that support it (A100, H100 and later): "fp16": '
            '{"enabled": false}',
            applies_to=reads_as_written,
            fix=as_fix(edits, safe=False),
        )


MASTER_KEYS = (
    FP16 / "fp16_master_weights_and_grads",
    BF16 / "bf16_master_weights_and_grads",
    BF16 / "bf16_optimizer_states",
)


def keeps_masters(config: Context, path: KeyPath) -> bool:
    """Return whether a key of ``MASTER_KEYS`` requests 16-bit masters or states."""
    block = config.bf16_block if path[0] == "bf16" else path[0]
    if config.since("0.17.1"):
        return config.is_on(ROOT / block, path[1])
    return config.since("0.5.0") and config.fp16 and config.switch(*path)


def has_16_bit_masters(config: Context, block: str) -> bool:
    """Return whether the optimizer updates the 16-bit weights of a precision block itself."""
    named = "bf16" if block == config.bf16_block else block
    return any(path[0] == named and keeps_masters(config, path) for path in MASTER_KEYS[:2])


@rule("DSC307", Effect.REFUSED, triggers="fp16 bf16 bfloat16", stops="end AssertionError")
def master_weights_need_zero(config: Context) -> Iterator[Finding]:
    """16-bit master weights or optimizer states require ZeRO

    Stages 1 to 3 support them since 0.18.3; before, only stage 2.

    bad: {"train_batch_size": 8, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}}
    """
    stages, named = ((1, 2, 3), "1, 2 or 3") if config.since("0.18.3") else ((2,), "2")
    for path in MASTER_KEYS:
        if config.stage not in stages and keeps_masters(config, path):
            yield Finding(
                path=path,
                message=f"{path} is enabled at ZeRO stage {config.stage}: {REJECTED}; "
                f"it requires stage {named}",
                help=f'delete it, or set "stage" to {named}',
            )


@rule("DSC308", Effect.REFUSED, triggers="bf16 bfloat16", stops="end AssertionError")
def bf16_states_need_masters(config: Context) -> Iterator[Finding]:
    """`bf16_optimizer_states` requires `bf16_master_weights_and_grads`

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true,
        "bf16_optimizer_states": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true,
        "bf16_optimizer_states": true, "bf16_master_weights_and_grads": true}}
    """
    block = ROOT / config.bf16_block
    states = config.is_on(block, "bf16_optimizer_states")
    if states and not config.is_on(block, "bf16_master_weights_and_grads"):
        yield Finding(
            path=block / "bf16_optimizer_states",
            message=f"bf16_optimizer_states requires bf16_master_weights_and_grads: {REJECTED}",
            help='add "bf16_master_weights_and_grads": true',
        )


@rule("DSC309", Effect.REFUSED, triggers="fp16 bf16 bfloat16", stops="zero AssertionError")
def master_weights_need_offload(config: Context) -> Iterator[Finding]:
    """16-bit master weights require optimizer offload with DeepSpeedCPUAdam

    `bf16_optimizer_states` without offload is an exception.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true,
        "bf16_master_weights_and_grads": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}}, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true}}
    """
    if config.stage == 0 or not config.since("0.5.0"):
        return
    states = config.is_on(ROOT / config.bf16_block, "bf16_optimizer_states")
    offloaded = config.offload("offload_optimizer") != "none"
    on_host = config.optimizer is None or config.builds_cpu_adam
    for path in MASTER_KEYS[:2]:
        exempt = path[0] == "bf16" and states and not offloaded
        if keeps_masters(config, path) and not exempt and not (offloaded and on_host):
            yield Finding(
                path=path,
                message=f"{path[1]} requires offload_optimizer with DeepSpeedCPUAdam: {AT_INIT}",
                help='add "offload_optimizer": {"device": "cpu"} to zero_optimization and use '
                "AdamW without torch_adam",
            )


@rule("DSC310", Effect.REFUSED, triggers="fp16", stops="zero AssertionError")
def both_master_weights(config: Context) -> Iterator[Finding]:
    """fp16 and bf16 master weights are both enabled

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}}, "fp16": {"enabled": true, "fp16_master_weights_and_grads": true}, "bf16":
        {"bf16_master_weights_and_grads": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}}, "fp16": {"enabled": true, "fp16_master_weights_and_grads": true}}
    """
    if config.stage and all(keeps_masters(config, path) for path in MASTER_KEYS[:2]):
        yield Finding(
            path=MASTER_KEYS[0],
            message=f"fp16 and bf16 master weights are mutually exclusive: {AT_INIT}",
            help="delete the one whose precision is disabled",
        )


@rule(
    "DSC311",
    Effect.REFUSED,
    triggers="fp16",
    applies_to=not_fills_auto,
    stops="step RuntimeError",
)
def auto_cast_without_fp16(config: Context) -> Iterator[Finding]:
    """`fp16.auto_cast` without fp16

    Since 0.17.1, positional inputs are cast to fp16 although fp16 is disabled. A model with
    floating-point inputs fails at its first matrix product because of mismatched dtypes. Integers
    such as token ids, and keyword arguments, which the Trainer passes, are not cast.

    bad: {"train_batch_size": 8, "fp16": {"enabled": false, "auto_cast": true}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "auto_cast": true}}
    """
    if not config.is_on(FP16, "auto_cast") or config.fp16 or not config.since("0.17.1"):
        return
    if config.has("fp16", "enabled") and not config.written(FP16, "enabled"):
        return
    weights = "bf16" if config.bf16 else "fp32"
    yield Finding(
        path=FP16 / "auto_cast",
        message=f"fp16.auto_cast casts inputs to fp16 while the weights are {weights}: the first "
        "step fails, unless all inputs are integers or keyword arguments",
        help='delete it, or set "auto_cast": false',
    )


@rule(
    "DSC312",
    Effect.COSTLY,
    also=(Effect.REFUSED,),
    triggers="fp16 bf16 bfloat16 torch_autocast",
    stops="engine ValueError",
)
def precision_not_on_device(config: Context) -> Iterator[Finding]:
    """Device does not support the precision

    The device is set by `--device`. Without bf16 units, torch emulates bf16: its
    `cuda.is_bf16_supported()`, which DeepSpeed and transformers check, returns true.

    with: device="v100", gpus=1
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true}}
    """
    device = config.facts.device
    if device is None:
        return
    if config.bf16 and not device.bf16:
        block = config.bf16_block
        yield Finding(
            path=ROOT / block / "enabled",
            message=f"{device.name} does not support bf16: torch emulates it, slowly",
            help=f'write "fp16": {{"enabled": true}} and disable {block}'
            if device.fp16
            else "train in fp32 on this device",
        )
    if config.fp16 and not device.fp16:
        yield Finding(
            path=FP16_ENABLED,
            message=f"{device.name} does not support fp16: {AT_INIT}",
            help="train in fp32 on this device",
            effect=Effect.REFUSED,
        )


@rule("DSC313", Effect.ALTERED, also=(Effect.INERT,), triggers="bfloat16")
def shadowed_bfloat16(config: Context) -> Iterator[Finding]:
    """`bfloat16` and `bf16` are both set

    Only `bf16` is read.

    bad: {"train_batch_size": 8, "bf16": {"enabled": false}, "bfloat16": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}}
    """
    new, old = config.get("bf16"), config.get("bfloat16")
    if new is not None and old is not None:
        same = new == old
        yield Finding(
            path=BFLOAT16,
            message="bfloat16 is ignored because bf16 is set"
            + ("" if same else ", although the two differ"),
            help="delete it",
            effect=Effect.INERT if same or not config.switch("bfloat16", "enabled") else None,
            on_key=True,
        )


@rule("DSC314", Effect.NOTE, triggers="fp16")
def fp16_on_bf16_model(config: Context) -> Iterator[Finding]:
    """fp16 training of a bf16 model

    Activations of a model that was pretrained in bf16 (`--model`) may exceed 65504, the largest
    fp16 number. Then gradients overflow until the loss scale reaches its minimum, where DeepSpeed
    raises an error.

    with: model="llama-2-7b"
    bad: {"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": true}}
    good: {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}
    """
    model = config.facts.model
    if config.fp16 and model is not None and model.trained_in == "bfloat16":
        yield Finding(
            path=FP16_ENABLED,
            message=f"{model.name} was trained in bf16: in fp16 its activations may overflow, and "
            "the loss scale may drop to its minimum",
            help='write "bf16": {"enabled": true} if the GPU supports it',
        )
