"""Rules for torch_autocast."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.precision import has_16_bit_masters
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import AT_INIT, Finding
from dsconfig.report import Effect
from dsconfig.runtimes.torch_names import NN_CLASSES
from dsconfig.schema.paths import AUTOCAST, ZERO
from dsconfig.schema.value_checks import DTYPES
from dsconfig.source.edit import as_fix, replace_value

HALF_DTYPES = (*DTYPES["fp16"], *DTYPES["bf16"])


@rule("DSC302", Effect.ALTERED, triggers="torch_autocast")
def autocast_with_half(config: Context) -> Iterator[Finding]:
    """`torch_autocast` together with `fp16` or `bf16`

    Autocast expects fp32 weights and casts them per operation; `fp16` and `bf16` cast the model.
    With both enabled, weights and activations are 16-bit, and autocast computes sensitive
    operations in fp32 from rounded inputs. Without fp32 master weights
    (`bf16_master_weights_and_grads`) this is DeepSpeed's documented combination and not reported:
    the weights are 16-bit anyway, and autocast adds the fp32 operations.

    bad: {"train_batch_size": 8, "torch_autocast": {"enabled": true, "dtype": "bfloat16"}, "bf16":
        {"enabled": true}}
    good: {"train_batch_size": 8, "torch_autocast": {"enabled": true, "dtype": "bfloat16"}}
    """
    if not config.switch("torch_autocast", "enabled"):
        return
    for block, on in (("fp16", config.fp16), (config.bf16_block, config.bf16)):
        if on and not has_16_bit_masters(config, block):
            yield Finding(
                path=AUTOCAST / "enabled",
                message=f"torch_autocast and {block} are both enabled: the model is cast to "
                "16-bit, and autocast computes sensitive operations in fp32 from rounded inputs",
                help=f'disable one of them: "{block}": {{"enabled": false}}',
            )


@rule("DSC303", Effect.NOTE, triggers="torch_autocast")
def autocast_dtype_missing(config: Context) -> Iterator[Finding]:
    """`torch_autocast` without `dtype`

    torch uses the default of the device (float16 on CUDA, bfloat16 on the CPU), without loss
    scaling.

    bad: {"train_batch_size": 8, "torch_autocast": {"enabled": true}}
    good: {"train_batch_size": 8, "torch_autocast": {"enabled": true, "dtype": "bfloat16"}}
    """
    if config.switch("torch_autocast", "enabled") and config.get("torch_autocast", "dtype") is None:
        yield Finding(
            path=AUTOCAST,
            message="torch_autocast is enabled without a dtype: torch uses the default of the "
            "device "
            "(float16 on CUDA)",
            help='add "dtype": "bfloat16"',
            on_key=True,
        )


@rule("DSC304", Effect.ALTERED, triggers="torch_autocast")
def autocast_dtype_unusable(config: Context) -> Iterator[Finding]:
    """`dtype` that torch autocast does not support

    DeepSpeed accepts the dtype; torch disables autocast with a warning, and training runs in fp32.

    bad: {"train_batch_size": 8, "torch_autocast": {"enabled": true, "dtype": "int8"}}
    good: {"train_batch_size": 8, "torch_autocast": {"enabled": true, "dtype": "bfloat16"}}
    """
    dtype = config.get("torch_autocast", "dtype")
    path = AUTOCAST / "dtype"
    if not config.switch("torch_autocast", "enabled") or not isinstance(dtype, str):
        return
    if dtype not in HALF_DTYPES and path not in config.failed_check:
        yield Finding(
            path=path,
            message=f'torch autocast does not support "{dtype}": torch disables it and trains in '
            "fp32",
            help='write "bfloat16" or "float16"',
        )


@refusal("DSC305", triggers="torch_autocast", stops="model ValueError")
def autocast_module_unknown(config: Context) -> Iterator[Finding]:
    """Entry of `lower_precision_safe_modules` that cannot be imported

    Each entry is `package.Class`. A string instead of a list is read letter by letter.

    bad: {"train_batch_size": 8, "torch_autocast": {"enabled": true, "dtype": "bfloat16",
        "lower_precision_safe_modules": ["torch.nn.Linaer"]}}
    good: {"train_batch_size": 8, "torch_autocast": {"enabled": true, "dtype": "bfloat16",
        "lower_precision_safe_modules": ["torch.nn.Linear"]}}
    """
    path = AUTOCAST / "lower_precision_safe_modules"
    modules = config.get(*path)
    if not config.switch("torch_autocast", "enabled") or not modules:
        return
    if isinstance(modules, str):
        yield Finding(
            path=path,
            message=f'"{modules}" is a string, not a list: DeepSpeed imports each letter and '
            "fails at engine initialization",
            help=f'write ["{modules}"]',
            fix=as_fix(replace_value(config.document, "/" + "/".join(path), [modules])),
        )
    elif isinstance(modules, list):
        for index, name in enumerate(config.items(*path)):
            if not isinstance(name, str):
                continue
            package, _, class_name = name.rpartition(".")
            # Only names that are certain to be wrong are reported.
            if not package or (package == "torch.nn" and class_name not in NN_CLASSES):
                meant = config.closest(class_name, NN_CLASSES)
                yield Finding(
                    path=path / str(index),
                    message=f'"{name}" cannot be imported: {AT_INIT}',
                    help=f'did you mean "torch.nn.{meant}"?' if meant else "write package.Class",
                )


@rule("DSC306", Effect.REFUSED, triggers="torch_autocast", stops="model AssertionError")
def autocast_with_quantized_weights(config: Context) -> Iterator[Finding]:
    """`torch_autocast` and `zero_quantized_weights` are mutually exclusive

    bad: {"train_batch_size": 8, "torch_autocast": {"enabled": true, "dtype": "bfloat16"},
        "zero_optimization": {"stage": 3, "zero_quantized_weights": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3,
        "zero_quantized_weights": true}}
    """
    quantized = config.in_force(ZERO, "zero_quantized_weights")
    if config.switch("torch_autocast", "enabled") and quantized:
        yield Finding(
            path=ZERO / "zero_quantized_weights",
            message=f"zero_quantized_weights and torch_autocast are mutually exclusive: {AT_INIT}",
            help='use "bf16": {"enabled": true} instead of torch_autocast',
        )
