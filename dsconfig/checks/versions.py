"""Rules that depend on the DeepSpeed release: added and removed keys, defaults, old limits."""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from dsconfig.batch import KEYS
from dsconfig.checks.context import Context, key_at
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import Finding, reaches_deepspeed, reads_training_arguments
from dsconfig.report import Effect
from dsconfig.runtimes.reading import Outcome
from dsconfig.schema.key_index import is_live
from dsconfig.schema.paths import ROOT, STAGE, ZERO, KeyPath
from dsconfig.schema.version import NEWEST, OLDEST
from dsconfig.source import plugin_settings
from dsconfig.source.pointer import is_block

if TYPE_CHECKING:
    from dsconfig.schema import Key


@lru_cache(maxsize=4096)
def versioned_key(path: KeyPath) -> "Key | None":
    """Return the key at a path if releases differ in reading it and no other rule reports it."""
    if path[:2] in (("optimizer", "params"), ("scheduler", "params")):
        return None
    from dsconfig.schema import KeyStatus

    key = key_at(path)
    if key is None or key.refused_from or key.declared.renamed or key.declared.deprecated:
        return None
    is_read = key.status in (KeyStatus.LIVE, KeyStatus.REMOVED)
    is_permanent = key.until is None and key.gap is None and (key.since or OLDEST) <= OLDEST
    return None if is_permanent or not is_read else key


def _versioned_keys(config: Context) -> Iterator[tuple[KeyPath, "Key"]]:
    newest = config.version >= NEWEST
    for path in config.paths:
        if newest and is_live(path):
            continue  # read by the newest release
        key = versioned_key(path)
        if key is not None and not config.is_unknown(path):
            yield path, key


@rule(
    "DSC811",
    Effect.ALTERED,
    also=(Effect.REFUSED,),
    applies_to=reaches_deepspeed,
    on_templates=True,
)
def key_too_new(config: Context) -> Iterator[Finding]:
    """Key requires a later DeepSpeed release

    In a validated block the target release rejects the config; elsewhere it silently ignores the
    key.

    with: version="0.14.4"
    bad: {"train_batch_size": 8, "torch_autocast": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}}
    """
    if config.version >= NEWEST:
        return
    reported: set[KeyPath] = set()
    for path, key in _versioned_keys(config):
        if key.since is None or config.version >= key.since or path[:-1] in reported:
            reported.update([path] if path[:-1] in reported else [])
            continue
        reported.add(path)
        entry = config.reading.at(path)
        refused = entry is not None and entry.outcome is Outcome.NOT_YET
        consequence = "rejects it" if refused else "silently ignores it"
        yield Finding(
            path=path,
            message=f"{'.'.join(path)} requires DeepSpeed {key.since}: {config.release} "
            f"{consequence}",
            help=f"delete it, or use DeepSpeed {key.since} or later",
            effect=Effect.REFUSED if refused else None,
            on_key=True,
        )


@refusal("DSC812", also=(Effect.ALTERED,), on_templates=True)
def key_no_longer_read(config: Context) -> Iterator[Finding]:
    """Key that the target release no longer reads

    bad: {"train_batch_size": 8, "compile": {"enabled": true, "backend": "inductor"}}
    good: {"train_batch_size": 8, "compile": {"deepcompile": true}}
    """
    for path, key in _versioned_keys(config):
        is_removed = key.until is not None and config.version > key.until
        in_gap = key.gap is not None and key.gap[0] <= config.version <= key.gap[1]
        if not is_removed and not in_gap:
            continue
        entry = config.reading.at(path)
        refused = entry is not None and entry.refused
        last = f"after DeepSpeed {key.until}" if is_removed else f"by DeepSpeed {config.release}"
        consequence = "DeepSpeed rejects it" if refused else "it is silently ignored"
        yield Finding(
            path=path,
            message=f"{'.'.join(path)} is not read {last}: {consequence}",
            help=f"write {key.replaced_by} instead" if key.replaced_by else "delete it",
            effect=None if refused else Effect.ALTERED,
            on_key=True,
        )


@refusal("DSC813", on_templates=True)
def unknown_key_in_release(config: Context) -> Iterator[Finding]:
    """Feature unknown to the target release

    It was added later, and removed again.

    with: version="0.9.1"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "mics_shard_size": 1}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    """
    for path, entry in config.reading.entries.items():
        known = entry.field
        if entry.outcome is Outcome.NOT_YET and known is not None and known.declared.refused:
            yield Finding(
                path=path,
                message=f"{'.'.join(path)} requires DeepSpeed {known.since}: {config.release} "
                "rejects it",
                help="delete it",
                on_key=True,
            )


def old_stage(config: Context) -> float | None:
    """Return the stage as releases before 0.7.0 compare it; None if it is not a number."""
    value = config.get("zero_optimization")
    if is_block(value):
        value = value.get("stage", 0)
    return value if isinstance(value, (int, float)) else None


@refusal("DSC814", triggers="zero_optimization", releases="to 0.3.16", stops="AssertionError")
def zero_needed_fp16(config: Context) -> Iterator[Finding]:
    """ZeRO requires fp16 in early releases

    This applies to ZeRO up to 0.3.15, and to stage 1 up to 0.3.16.

    with: version="0.3.10"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}
    """
    stage = old_stage(config)
    if config.fp16 or stage is None or stage <= 0:
        return
    if stage < 2 or not config.since("0.3.16"):
        yield Finding(
            path=ZERO,
            message=f"DeepSpeed {config.version} requires fp16 for ZeRO stage {stage:g}: "
            "it rejects the config",
            help='add "fp16": {"enabled": true}, or use DeepSpeed 0.4.0 or later',
        )


@refusal("DSC815", triggers="zero_optimization", releases="to 0.6.7")
def old_zero_limits(config: Context) -> Iterator[Finding]:
    """Invalid `zero_optimization` for releases before 0.7.0

    with: version="0.6.7"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 4}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    """
    for path, problem, exception in _old_faults(config):
        yield Finding(
            path=path,
            message=f"{'.'.join(path)} {problem}: DeepSpeed {config.release} rejects the config",
            help="see the documentation of that release",
            exception=exception,
        )


def _old_faults(config: Context) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield key, problem and exception for each invalid value."""
    block = config.get(*ZERO)
    if not is_block(block):
        if config.has(*ZERO) and not isinstance(block, bool):
            yield ZERO, "is not an object", "AttributeError"
        return
    stage, highest = block.get("stage", 0), 3 if config.since("0.3.8") else 2
    if not isinstance(stage, (int, float)):
        yield STAGE, "is not a number", "TypeError"
    elif stage > highest:
        yield STAGE, f"is above {highest}", "AssertionError"
    switches = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_params"}
    for name, switch in switches.items() if config.since("0.3.15") else ():
        value, path = block.get(name), ZERO / name
        if value is None or switch in block:
            continue
        if not is_block(value):
            yield path, "is not an object", "AttributeError"
        elif config.since("0.5.7") and value.get("device", "cpu") not in ("none", "cpu", "nvme"):
            yield path / "device", "must be none, cpu or nvme", "ValueError"


@refusal("DSC816", triggers="bf16 bfloat16", releases="0.6.0 to 0.6.1", stops="AssertionError")
def bf16_needed_zero(config: Context) -> Iterator[Finding]:
    """bf16 requires ZeRO in DeepSpeed 0.6.0 and 0.6.1

    with: version="0.6.1"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}
    """
    if config.bf16 and old_stage(config) not in (1, 2, 3):
        yield Finding(
            path=ROOT / config.bf16_block / "enabled",
            message=f"DeepSpeed {config.version} requires ZeRO stage 1, 2 or 3 for bf16: "
            "it rejects the config",
            help='add "zero_optimization": {"stage": 1}, or use DeepSpeed 0.6.2 or later',
        )


@refusal("DSC819", triggers="elasticity", releases="0.3.9 to 0.19.7", stops="ElasticityConfigError")
def elasticity_with_batch(config: Context) -> Iterator[Finding]:
    """Elasticity together with batch values

    Elasticity sets the batch values itself. DeepSpeed up to 0.19.7 rejects configs that also set
    them, unless `ignore_non_elastic_batch_info` is true.

    with: version="0.14.4"
    bad: {"train_batch_size": 8, "elasticity": {"enabled": true, "max_train_batch_size": 8,
        "micro_batch_sizes": [1, 2]}}
    good: {"train_batch_size": 8, "elasticity": {"enabled": false}}
    """
    ignores = config.switch("elasticity", "ignore_non_elastic_batch_info")
    written = [key for key in sorted(KEYS) if key in config.config]
    if config.switch("elasticity", "enabled") and written and not ignores:
        yield Finding(
            path=ROOT / "elasticity" / "enabled",
            message=f"elasticity is enabled, and {' and '.join(written)} is set: "
            f"DeepSpeed {config.release} rejects the config",
            help='delete the batch values, or add "ignore_non_elastic_batch_info": true',
        )


@refusal("DSC866", triggers="elasticity", releases="0.3.9 to 0.19.7", stops="ElasticityConfigError")
def elasticity_incomplete(config: Context) -> Iterator[Finding]:
    """Elasticity without its limit or its micro batches

    DeepSpeed up to 0.19.7 requires `max_train_batch_size` and `micro_batch_sizes`, a list of
    positive integers, if elasticity is enabled.

    with: version="0.14.4"
    bad: {"train_batch_size": 8, "elasticity": {"enabled": true, "micro_batch_sizes": [1, 2],
        "ignore_non_elastic_batch_info": true}}
    good: {"train_batch_size": 8, "elasticity": {"enabled": true, "max_train_batch_size": 8,
        "micro_batch_sizes": [1, 2], "ignore_non_elastic_batch_info": true}}
    """
    if not config.switch("elasticity", "enabled"):
        return
    for key in ("max_train_batch_size", "micro_batch_sizes"):
        if not config.has("elasticity", key):
            yield Finding(
                path=ROOT / "elasticity" / "enabled",
                message=f"elasticity is enabled without {key}: DeepSpeed {config.release} rejects "
                "the config",
                help=f'add "{key}", or delete the block',
            )
    sizes = config.items("elasticity", "micro_batch_sizes")
    if any(isinstance(size, int | float) and size <= 0 for size in sizes):
        yield Finding(
            path=ROOT / "elasticity" / "micro_batch_sizes",
            message=f"micro_batch_sizes contains a number below 1: DeepSpeed {config.release} "
            "rejects the config",
            help="list positive integers",
        )


@refusal("DSC817", triggers="compression_training", releases="0.7.0 to 0.19.2", stops="NameError")
def wrong_level_name_error(config: Context) -> Iterator[Finding]:
    """`shared_parameters` directly in `compression_training`

    DeepSpeed 0.7.0 to 0.19.2 raise a NameError.

    with: version="0.9.0"
    bad: {"train_batch_size": 8, "compression_training": {"shared_parameters": {"enabled": true}}}
    good: {"train_batch_size": 8, "compression_training": {"layer_reduction": {"enabled": false}}}
    """
    path = ROOT / "compression_training" / "shared_parameters" / "enabled"
    if config.switch(*path):
        yield Finding(
            path=path,
            message="shared_parameters is not in a method of compression_training: DeepSpeed "
            f"{config.release} raises a NameError",
            help="move it into weight_quantization or another method of the block",
        )


# The Trainer sets max_grad_norm, 1.0 by default.
@rule(
    "DSC818",
    Effect.NOTE,
    also=(Effect.ALTERED,),
    applies_to=lambda one: reaches_deepspeed(one) and not reads_training_arguments(one),
)
def clipping_by_default(config: Context) -> Iterator[Finding]:
    """Default of `gradient_clipping` differs between releases

    Without the key, DeepSpeed 0.19.3 and later clip at 1.0; earlier releases do not clip. Reported
    only for one target program, not for the Trainer, which sets `max_grad_norm` to 1.0, and not
    together with DSC845, where gradients are too small to be clipped. A `gradient_clipping: 0` in
    accelerate's YAML is `altered`: accelerate does not write it into the config.

    bad: {"train_batch_size": 8}
    good: {"train_batch_size": 8, "gradient_clipping": 1.0}
    """
    if (
        len(config.runtimes) == 1
        and config.since("0.19.3")
        and not config.has("gradient_clipping")
        and not config.is_unscaled
    ):
        is_generated = config.document.is_generated
        asked = plugin_settings.block_of(config.document.container).get("gradient_clipping")
        if is_generated and asked is not None and not asked:
            yield Finding(
                path=ROOT / "deepspeed_config" / "gradient_clipping",
                message="gradient_clipping is 0, which accelerate does not write into the config: "
                f"DeepSpeed {config.release} clips at 1.0",
                help="write a config file with gradient_clipping 0, and name it in "
                "deepspeed_config_file",
                effect=Effect.ALTERED,
            )
            return
        yield Finding(
            path=ROOT,
            message=f"gradient_clipping is not set: DeepSpeed {config.release} clips at 1.0 "
            "(before 0.19.3: no clipping)",
            help='write "gradient_clipping": 1.0'
            + ("" if is_generated else ", or 0 to disable clipping"),
        )
