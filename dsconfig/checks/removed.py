"""Features that a release of DeepSpeed took out and refuses by name."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Example, Finding, Path, in_deepspeed
from dsconfig.report import Effect
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.reading import is_block
from dsconfig.runtimes.removals import REMOVALS, Removal
from dsconfig.source.edit import as_fix, delete_entry
from dsconfig.source.pointer import join


def _removals(config: Context) -> Iterator[tuple[Path, Removal]]:
    for path, removal in REMOVALS.items():
        if path[0] in config.config and config.has(*path):
            yield path, removal


@rule(
    "DSC801",
    "removed-feature",
    Effect.REFUSED,
    wakes=" ".join(sorted({path[0] for path in REMOVALS})),
    bad='{"train_batch_size": 8, "amp": {"enabled": false}}',
    good='{"train_batch_size": 8, "bf16": {"enabled": true}}',
    holds=in_deepspeed,
    on_templates=True,
)
def removed_feature(config: Context) -> Iterator[Finding]:
    """The release judged for refuses this key by name, whatever its value.

    Even `{"enabled": false}` and null stop the program: the mere presence counts. The block
    worked, or was ignored, up to the release before.
    """
    for path, removal in _removals(config):
        if config.version >= removal.refused_from:
            dotted = ".".join(path)
            yield Finding(
                path=path,
                message=(
                    f"{dotted} was removed: DeepSpeed {removal.refused_from} and later stop at "
                    "its mere presence"
                ),
                help=removal.advice,
                fix=as_fix(
                    delete_entry(config.document, join(*path)),
                    safe=_is_off(config.get(*path)),
                ),
                on_key=True,
            )


def _is_off(value: object) -> bool:
    """Whether the feature was switched off, so that deleting it changes nothing."""
    if value is None or value is False:
        return True
    return is_block(value) and value.get("enabled") is False


@rule(
    "DSC802",
    "will-be-removed",
    Effect.DEPRECATED,
    wakes=" ".join(sorted({path[0] for path in REMOVALS})),
    bad=Example(config='{"train_batch_size": 8, "amp": {"enabled": true}}', version="0.19.6"),
    good=Example(config='{"train_batch_size": 8, "bf16": {"enabled": true}}', version="0.19.6"),
)
def will_be_removed(config: Context) -> Iterator[Finding]:
    """The key works in the release judged for, and a later one refuses it by name."""
    for path, removal in _removals(config):
        if config.version < removal.refused_from and not _is_served(config, removal):
            yield Finding(
                path=path,
                message=f"{'.'.join(path)} is refused from DeepSpeed {removal.refused_from} on",
                help=removal.advice,
                on_key=True,
            )


def _is_served(config: Context, removal: Removal) -> bool:
    return removal.by_engine and not config.ends_in_deepspeed


def _outside_deepspeed(runtime: Runtime) -> bool:
    return not runtime.ends_in_deepspeed


@rule(
    "DSC803",
    "feature-not-in-engine",
    Effect.REFUSED,
    wakes=" ".join(sorted({path[0] for path in REMOVALS})),
    bad=Example(config='{"train_batch_size": 8, "amp": {"enabled": true}}', runtime="dsengine"),
    good=Example(config='{"train_batch_size": 8, "sparse_gradients": true}', runtime="dsengine"),
    holds=_outside_deepspeed,
)
def feature_not_in_engine(config: Context) -> Iterator[Finding]:
    """dsengine serves none of DeepSpeed's removed features, except a few it lists."""
    if config.ends_in_deepspeed:
        return
    for path, removal in _removals(config):
        if not removal.by_engine:
            yield Finding(
                path=path,
                message=f"dsengine has no {'.'.join(path)}: a plan for it is refused",
                help=removal.advice,
                on_key=True,
            )
