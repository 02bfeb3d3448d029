"""How both Hugging Face integrations look keys up, and the width of a model.

Where a block on the way is a text, the bare AttributeError of their code is the answer.
"""

from collections.abc import Mapping
from typing import Any, cast

from dsconfig.facts import hf_attributes
from dsconfig.facts.model import ModelOutline, ModelTree
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.behavior.replay import MissingFact, ReplayStop, errors_at
from dsconfig.schema.paths import OPTIMIZER_DEVICE, PARAM_DEVICE, STAGE
from dsconfig.source.pointer import ABSENT

Named = ModelTree | ModelOutline | None
"""The model of a run, whatever is known of it; None where nobody named one."""


def node(config: dict[str, Any], path: str) -> tuple[dict[str, Any] | None, str]:
    """The block a key stands in (None where one on the way is absent), and the key's name."""
    *blocks, name = path.split(".")
    place: Any = config
    for block in blocks:
        with errors_at():
            place = place.get(block)
        if place is None:
            return None, name
    return place, name


def value(config: dict[str, Any], path: str, default: Any = None) -> Any:
    place, name = node(config, path)
    if place is None:
        return default
    with errors_at():
        return place.get(name, default)


def is_auto(config: dict[str, Any], path: str) -> bool:
    found = value(config, path)
    return found is not None and found == AUTO


def fill(config: dict[str, Any], path: str, wanted: Any) -> bool:
    """Write where "auto" stands; False where something else does, or nothing."""
    place, name = node(config, path)
    if place is None:
        return False
    with errors_at():
        if place.get(name) != AUTO:
            return False
    place[name] = wanted
    return True


def stage_of(config: dict[str, Any]) -> Any:
    """The stage both integrations note when they are handed a config (-1 without one).

    At stages 2 and 3 they look at the offload devices as well, which is where a block that
    is a text stops them.
    """
    stage = value(config, STAGE, -1)
    if stage in (2, 3):
        value(config, OPTIMIZER_DEVICE)
        value(config, PARAM_DEVICE)
    return stage


BY_WIDTH = (
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
)
"""The keys sized by it, in the order both programs handle them."""


def sizes_by_width(width: Any) -> tuple[Any, Any, Any]:
    """h*h, int(0.9*h*h), 10*h, in whatever arithmetic the width brings with it."""
    with errors_at():
        return width * width, int(0.9 * width * width), 10 * width


def width_for_transformers(model: Named, open_keys: list[str]) -> Any:
    """hidden_size, the widest of hidden_sizes, then the same two of text_config."""
    config = _config(model, open_keys)
    text = config.get("text_config") if config is not None else None
    width = _width_in(config, text)
    if width is ABSENT or width is None:
        _insist_on_knowing(config, open_keys)
        said = "the model's config has neither hidden_size nor hidden_sizes"
        raise ReplayStop("ValueError", said, *open_keys, late=True)
    return width


def width_for_accelerate(model: Named, open_keys: list[str]) -> Any:
    """hidden_size, then the widest of hidden_sizes, at the top level alone."""
    config = _config(model, open_keys)
    if config is None:
        raise ReplayStop("ValueError", "the model has no config attribute", *open_keys, late=True)
    width = _width_in(config)
    if width is not ABSENT:
        return width
    _insist_on_knowing(config, open_keys)
    said = "model.config has neither hidden_size nor hidden_sizes at its top level"
    raise ReplayStop("ValueError", said, *open_keys, late=True)


def _width_in(*configs: Any) -> Any:
    """By the first of the two names that the first config has which has one."""
    for config in configs:
        if not isinstance(config, Mapping):
            continue
        held = cast(Mapping[str, Any], config)
        if "hidden_size" in held:
            return held["hidden_size"]
        if "hidden_sizes" in held:
            return _widest(held["hidden_sizes"])
    return ABSENT


def _config(model: Named, open_keys: list[str]) -> Mapping[str, Any] | None:
    if model is None:
        raise MissingFact(
            open_keys[0],
            "the bucket sizes follow the model's hidden_size, and no model was named",
            "give --model",
        )
    return model.config


def _insist_on_knowing(config: Mapping[str, Any] | None, open_keys: list[str]) -> None:
    """Before it is said that a width is not there: a class may keep or compute it unseen."""
    if config is not None and not hf_attributes.is_known(config):
        kind = config.get("model_type")
        said = f"the width of model_type {kind!r} does not show in its config.json"
        raise MissingFact(open_keys[0], said, "write the bucket sizes, or hidden_size in that file")


def _widest(sizes: Any) -> Any:
    with errors_at():
        try:
            return max(sizes)
        except ValueError as error:
            raise ReplayStop("ValueError", f"hidden_sizes: {error}", late=True) from error
