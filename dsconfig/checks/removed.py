"""Rules for features that DeepSpeed removed and rejects by name."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect
from dsconfig.schema import Key, Version
from dsconfig.schema.paths import KeyPath
from dsconfig.source.edit import as_fix, delete_entry
from dsconfig.source.pointer import is_block


def _removals(config: Context) -> Iterator[tuple[KeyPath, Key, Version]]:
    for path, key in config.removed.items():
        if key.refused_from is not None:
            yield path, key, key.refused_from


@refusal("DSC801", on_templates=True, stops="start DeepSpeedConfigError")
def removed_feature(config: Context) -> Iterator[Finding]:
    """Removed feature

    DeepSpeed rejects this key regardless of its value, even `{"enabled": false}` and null. Earlier
    releases support or ignore it.

    bad: {"train_batch_size": 8, "amp": {"enabled": false}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}}
    """
    for path, key, refused_from in _removals(config):
        if config.version >= refused_from:
            dotted, value = path.dotted, config.get(*path)
            # Deleting a disabled feature changes nothing; the settings of others are not lost.
            switch = value.get("enabled") if is_block(value) else value
            is_off = value is None or switch is False
            yield Finding(
                path=path,
                message=f"{dotted} was removed: DeepSpeed {refused_from} and later reject it, "
                "whatever "
                "its value",
                help=key.declared.instead,
                fix=as_fix(delete_entry(config.document, path.pointer), safe=True)
                if is_off
                else None,
                on_key=True,
            )


@rule("DSC802", Effect.DEPRECATED)
def will_be_removed(config: Context) -> Iterator[Finding]:
    """Feature removed in a later release

    with: version="0.19.6"
    bad: {"train_batch_size": 8, "amp": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}}
    """
    for path, key, refused_from in _removals(config):
        is_served = key.declared.in_engine and not config.runs_deepspeed
        if config.version < refused_from and not is_served:
            yield Finding(
                path=path,
                message=f"{'.'.join(path)} is rejected by DeepSpeed {refused_from} and later",
                help=key.declared.instead,
                on_key=True,
            )


@rule("DSC803", Effect.REFUSED, applies_to=lambda runtime: not runtime.runs_deepspeed)
def feature_not_in_engine(config: Context) -> Iterator[Finding]:
    """Feature not supported by dsengine

    dsengine does not implement most of the features that DeepSpeed removed.

    with: runtime="dsengine"
    bad: {"train_batch_size": 8, "amp": {"enabled": true}}
    good: {"train_batch_size": 8, "sparse_gradients": true}
    """
    if config.runs_deepspeed:
        return
    for path, key, _ in _removals(config):
        if not key.declared.in_engine:
            yield Finding(
                path=path,
                message=f"dsengine does not support {'.'.join(path)} and rejects the plan",
                help=key.declared.instead,
                on_key=True,
            )
