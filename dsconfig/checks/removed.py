"""Features that a release of DeepSpeed took out and refuses by name."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import Finding, Path
from dsconfig.report import Effect
from dsconfig.schema import Key, Version
from dsconfig.source.edit import as_fix, delete_entry
from dsconfig.source.pointer import is_block, join


def _removals(config: Context) -> Iterator[tuple[Path, Key, Version]]:
    for path, key in config.removed.items():
        if key.refused_from is not None:
            yield path, key, key.refused_from


@refusal("DSC801", on_templates=True)
def removed_feature(config: Context) -> Iterator[Finding]:
    """The release judged for refuses this key by name, whatever its value.

    Even `{"enabled": false}` and null stop the program: the mere presence counts. The block
    worked, or was ignored, up to the release before.

    bad: {"train_batch_size": 8, "amp": {"enabled": false}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}}
    """
    for path, key, refused_from in _removals(config):
        if config.version >= refused_from:
            dotted, value = ".".join(path), config.get(*path)
            # Where it was switched off, deleting it changes nothing.
            switch = value.get("enabled") if is_block(value) else value
            yield Finding(
                path=path,
                message=f"{dotted} was removed: DeepSpeed {refused_from} and later stop at its "
                "mere presence",
                help=key.declared.instead,
                fix=as_fix(
                    delete_entry(config.document, join(*path)),
                    safe=value is None or switch is False,
                ),
                on_key=True,
            )


@rule("DSC802", Effect.DEPRECATED)
def will_be_removed(config: Context) -> Iterator[Finding]:
    """The key works in the release judged for, and a later one refuses it by name.

    with: version="0.19.6"
    bad: {"train_batch_size": 8, "amp": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}}
    """
    for path, key, refused_from in _removals(config):
        is_served = key.declared.in_engine and not config.runs_deepspeed
        if config.version < refused_from and not is_served:
            yield Finding(
                path=path,
                message=f"{'.'.join(path)} is refused from DeepSpeed {refused_from} on",
                help=key.declared.instead,
                on_key=True,
            )


@rule("DSC803", Effect.REFUSED, applies_to=lambda runtime: not runtime.runs_deepspeed)
def feature_not_in_engine(config: Context) -> Iterator[Finding]:
    """dsengine serves none of DeepSpeed's removed features, except a few it lists.

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
                message=f"dsengine has no {'.'.join(path)}: a plan for it is refused",
                help=key.declared.instead,
                on_key=True,
            )
