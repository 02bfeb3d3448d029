"""Key lookup in both Hugging Face integrations, and the width of a model.

If a block on the path is a string, their code raises a plain AttributeError, as here.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from dsconfig.facts.naming import named
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.replay import MissingFact, Replay, ReplayStop, errors_at
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath
from dsconfig.source.pointer import ABSENT

with lazy_imports():
    from dsconfig.facts import hf_attributes
    from dsconfig.facts import model as models

SpecifiedModel: TypeAlias = "models.ModelTree | models.ModelOutline | None"
"""The model of a run, if specified."""


def block_around(config: dict[str, Any], path: KeyPath) -> dict[str, Any] | None:
    """Return the block of a key; None if absent."""
    place: Any = config
    for block in path.parent:
        with errors_at():
            place = place.get(block)
        if place is None:
            return None
    return place


def value(config: dict[str, Any], path: KeyPath, default: Any = None) -> Any:
    place = block_around(config, path)
    if place is None:
        return default
    with errors_at():
        return place.get(path.name, default)


def is_auto(config: dict[str, Any], path: KeyPath) -> bool:
    found = value(config, path)
    return found is not None and found == AUTO


def replace_auto(config: dict[str, Any], path: KeyPath, wanted: Any) -> bool:
    """Replace "auto"; return False for any other value or none."""
    place = block_around(config, path)
    if place is None:
        return False
    with errors_at():
        if place.get(path.name) != AUTO:
            return False
    place[path.name] = wanted
    return True


def stage_of(config: dict[str, Any]) -> Any:
    """Return the stage that both integrations read from a config (-1 without one).

    At stages 2 and 3 they read the offload devices as well, and fail if a block is a string.
    """
    stage = value(config, paths.STAGE, -1)
    if stage in (2, 3):
        value(config, paths.OPTIMIZER_DEVICE)
        value(config, paths.PARAM_DEVICE)
    return stage


BY_WIDTH = (paths.REDUCE_BUCKET, paths.PREFETCH_BUCKET, paths.PERSISTENCE_THRESHOLD)
"""The keys sized by it, in the order in which both programs handle them."""


def sizes_by_width(width: Any) -> tuple[Any, Any, Any]:
    """Return h*h, int(0.9*h*h) and 10*h, in the arithmetic of the given type."""
    with errors_at():
        return width * width, int(0.9 * width * width), 10 * width


def width_for_transformers(model: SpecifiedModel, open_keys: list[KeyPath]) -> Any:
    """Return hidden_size or the largest of hidden_sizes, then the same of text_config."""
    config = _config(model, open_keys)
    text = config.get("text_config") if config is not None else None
    width = _width_in(config, text)
    if width is ABSENT or width is None:
        _require_known_width(config, open_keys)
        message = "the model's config has neither hidden_size nor hidden_sizes"
        raise ReplayStop("ValueError", message, *open_keys, late=True)
    return width


def width_for_accelerate(model: SpecifiedModel, open_keys: list[KeyPath]) -> Any:
    """Return hidden_size or the largest of hidden_sizes, at the top level only."""
    config = _config(model, open_keys)
    if config is None:
        raise ReplayStop("ValueError", "the model has no config attribute", *open_keys, late=True)
    width = _width_in(config)
    if width is not ABSENT:
        return width
    _require_known_width(config, open_keys)
    message = "model.config has neither hidden_size nor hidden_sizes at its top level"
    raise ReplayStop("ValueError", message, *open_keys, late=True)


def _width_in(*configs: Any) -> Any:
    """Return the width of the first config that has one."""
    for config in configs:
        if not isinstance(config, Mapping):
            continue
        held = cast(Mapping[str, Any], config)
        if "hidden_size" in held:
            return held["hidden_size"]
        if "hidden_sizes" in held:
            return _widest(held["hidden_sizes"])
    return ABSENT


def _config(model: SpecifiedModel, open_keys: list[KeyPath]) -> Mapping[str, Any] | None:
    if model is None:
        raise MissingFact(
            open_keys[0],
            "the bucket sizes depend on the model's hidden_size, but no model is specified",
            f"specify {named('model')}",
            fact="model",
        )
    if isinstance(model, models.ModelOutline) and not model.config:
        raise MissingFact(
            open_keys[0],
            f"the bucket sizes depend on the hidden_size of {model.name}, which is not known",
            f"specify {named('model')}, the path of its config.json",
            fact="model",
        )
    if isinstance(model, models.ModelTree) and model.assumed and not model.config:
        raise MissingFact(
            open_keys[0],
            "bucket sizes depend on hidden_size, and only the parameter count is specified",
            f"specify {named('model')}",
            fact="model",
        )
    return model.config


def _require_known_width(config: Mapping[str, Any] | None, open_keys: list[KeyPath]) -> None:
    """Raise MissingFact if the class may provide the width that the config.json lacks."""
    if config is not None and not hf_attributes.is_known(config):
        kind = config.get("model_type")
        message = f"the hidden size of model_type {kind!r} is not in its config.json"
        remedy = "write the bucket sizes, or add hidden_size to that file"
        raise MissingFact(open_keys[0], message, remedy, fact="model")


def _widest(sizes: Any) -> Any:
    with errors_at():
        try:
            return max(sizes)
        except ValueError as error:
            raise ReplayStop("ValueError", f"hidden_sizes: {error}", late=True) from error


def remark_accumulation(replay: Replay, given: int) -> None:
    written = value(replay.config, paths.ACCUMULATION)
    if written != given:
        replay.remark(
            "DSC756",
            paths.ACCUMULATION,
            f"the run specifies {given} accumulation steps, but DeepSpeed receives {written}",
            'write "gradient_accumulation_steps": "auto"',
        )
