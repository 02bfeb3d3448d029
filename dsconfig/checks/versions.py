"""What depends on the DeepSpeed release: keys that came and went, defaults, old limits."""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from dsconfig.checks.context import Context, key_at
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import Finding, Path, reaches_deepspeed, reads_training_arguments
from dsconfig.report import Effect
from dsconfig.runtimes.reading import Outcome
from dsconfig.schema.key_index import is_live
from dsconfig.schema.version import NEWEST, OLDEST

if TYPE_CHECKING:
    from dsconfig.schema import Key


@lru_cache(maxsize=4096)
def versioned_key(path: Path) -> "Key | None":
    """The key at a path if it came or went after the first release, and no other rule tells so."""
    if path[:2] in (("optimizer", "params"), ("scheduler", "params")):
        return None
    from dsconfig.schema import KeyStatus

    key = key_at(path)
    if key is None or key.refused_from or key.declared.renamed or key.declared.deprecated:
        return None
    is_read = key.status in (KeyStatus.LIVE, KeyStatus.REMOVED)
    lasting = key.until is None and key.gap is None and (key.since or OLDEST) <= OLDEST
    return None if lasting or not is_read else key


def _own(config: Context) -> Iterator[tuple[Path, "Key"]]:
    newest = config.version >= NEWEST
    for path in config.paths:
        if newest and is_live(path):
            continue  # neither too new nor gone, whatever was between
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
    """The release judged for does not know this key yet.

    In a checked block it stops; elsewhere the key is ignored without a word.

    with: version="0.14.4"
    bad: {"train_batch_size": 8, "torch_autocast": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}}
    """
    if config.version >= NEWEST:
        return
    told: set[Path] = set()
    for path, key in _own(config):
        if key.since is None or config.version >= key.since or path[:-1] in told:
            told.update([path] if path[:-1] in told else [])
            continue
        told.add(path)
        entry = config.reading.at(path)
        refused = entry is not None and entry.outcome is Outcome.NOT_YET
        what = "stops at it" if refused else "ignores it without a word"
        yield Finding(
            path=path,
            message=f"{'.'.join(path)} came with DeepSpeed {key.since}: {config.release} {what}",
            help=f"delete it, or use DeepSpeed {key.since} or later",
            effect=Effect.REFUSED if refused else None,
            on_key=True,
        )


@refusal("DSC812", also=(Effect.ALTERED,), on_templates=True)
def key_no_longer_read(config: Context) -> Iterator[Finding]:
    """An earlier release read this key; the one judged for does not.

    bad: {"train_batch_size": 8, "compile": {"enabled": true, "backend": "inductor"}}
    good: {"train_batch_size": 8, "compile": {"deepcompile": true}}
    """
    for path, key in _own(config):
        gone = key.until is not None and config.version > key.until
        in_gap = key.gap is not None and key.gap[0] <= config.version <= key.gap[1]
        if not gone and not in_gap:
            continue
        entry = config.reading.at(path)
        refused = entry is not None and entry.refused
        last = key.until if gone else None
        since = f"since DeepSpeed {last}" if last else f"by DeepSpeed {config.release}"
        what = "it stops at the key" if refused else "the key is ignored without a word"
        yield Finding(
            path=path,
            message=f"{'.'.join(path)} is not read {since}: {what}",
            help=f"write {key.replaced_by} instead" if key.replaced_by else "delete it",
            effect=None if refused else Effect.ALTERED,
            on_key=True,
        )


@refusal("DSC813", on_templates=True)
def unknown_key_in_release(config: Context) -> Iterator[Finding]:
    """A feature that came and went: the release judged for is older than both.

    with: version="0.9.1"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "mics_shard_size": 1}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    """
    for path, entry in config.reading.entries.items():
        known = entry.field
        if entry.outcome is Outcome.NOT_YET and known is not None and known.declared.refused:
            yield Finding(
                path=path,
                message=f"{'.'.join(path)} came with DeepSpeed {known.since}: "
                f"{config.release} stops at it",
                help="delete it",
                on_key=True,
            )


@refusal("DSC814", triggers="zero_optimization")
def zero_needed_fp16(config: Context) -> Iterator[Finding]:
    """Up to 0.3.15 ZeRO ran under fp16 only, up to 0.3.16 stage 1 did.

    with: version="0.3.10"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}
    """
    yield from config.violation_findings(
        "zero-needed-fp16",
        "it stops",
        'add "fp16": {"enabled": true}, or use DeepSpeed 0.4.0 or later',
    )


@refusal("DSC815", triggers="zero_optimization")
def old_zero_limits(config: Context) -> Iterator[Finding]:
    """What releases before 0.7.0 checked in zero_optimization: little, and by hand.

    with: version="0.6.7"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 4}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    """
    yield from config.violation_findings(
        "old-zero-limits",
        f"DeepSpeed {config.release} stops",
        "write what the documentation of that release asks for",
    )


@refusal("DSC816", triggers="bf16 bfloat16")
def bf16_needed_zero(config: Context) -> Iterator[Finding]:
    """DeepSpeed 0.6.0 and 0.6.1 ran bf16 with ZeRO 1 to 3 only.

    with: version="0.6.1"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}
    """
    yield from config.violation_findings(
        "bf16-needed-zero",
        "it stops otherwise",
        'add "zero_optimization": {"stage": 1}, or use DeepSpeed 0.6.2 or later',
    )


@refusal("DSC819", triggers="elasticity")
def elasticity_with_batch(config: Context) -> Iterator[Finding]:
    """Elasticity chooses the batch numbers itself; up to 0.19.7 it stops where the file has them
    too, unless `ignore_non_elastic_batch_info` is true.

    with: version="0.14.4"
    bad: {"train_batch_size": 8, "elasticity": {"enabled": true, "max_train_batch_size": 8,
        "micro_batch_sizes": [1, 2]}}
    good: {"train_batch_size": 8, "elasticity": {"enabled": false}}
    """
    yield from config.violation_findings(
        "elasticity-with-batch",
        f"DeepSpeed {config.release} stops",
        'delete the batch numbers, or add "ignore_non_elastic_batch_info": true',
    )


@refusal("DSC817", triggers="compression_training")
def wrong_level_name_error(config: Context) -> Iterator[Finding]:
    """`shared_parameters` right below compression_training sends 0.7.0 to 0.19.2 into code
    that does not exist any more; they stop with a NameError.

    with: version="0.9.0"
    bad: {"train_batch_size": 8, "compression_training": {"shared_parameters": {"enabled": true}}}
    good: {"train_batch_size": 8, "compression_training": {"layer_reduction": {"enabled": false}}}
    """
    for violation in config.violations("wrong-level-name-error"):
        yield Finding(
            path=violation.path,
            message=f"DeepSpeed {config.release} stops with a NameError at shared_parameters here",
            help="move it into weight_quantization or another method of the block",
        )


# The Trainer's own max_grad_norm is 1.0, whoever clips.
@rule(
    "DSC818",
    Effect.NOTE,
    applies_to=lambda one: reaches_deepspeed(one) and not reads_training_arguments(one),
)
def clipping_by_default(config: Context) -> Iterator[Finding]:
    """Without `gradient_clipping`, releases since 0.19.3 clip at 1.0; earlier ones did not.

    Told where one program is asked about, and not of the Trainer, whose own `max_grad_norm` is 1.0;
    nor where DSC845 is, whose gradients are too small to be clipped.

    bad: {"train_batch_size": 8}
    good: {"train_batch_size": 8, "gradient_clipping": 1.0}
    """
    if (
        len(config.runtimes) == 1
        and config.since("0.19.3")
        and not config.has("gradient_clipping")
        and not config.is_unscaled
    ):
        yield Finding(
            path=(),
            message=f"gradient_clipping is not set: DeepSpeed {config.release} clips at 1.0 "
            "(not at all before 0.19.3)",
            help='write "gradient_clipping": 1.0, or 0 to switch it off',
        )
