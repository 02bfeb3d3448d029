"""Where the two integrations look for the width of a model, and how they fail to find it."""

from collections.abc import Mapping
from typing import Any, cast

from dsconfig.facts import ModelTree
from dsconfig.runtimes.behaviour.outcome import MissingFact, Stops, about

KEYS = (
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
)
"""The keys sized by it, in the order both programs handle them."""


def sizes(width: Any) -> tuple[Any, Any, Any]:
    """h*h, int(0.9*h*h), 10*h, in whatever arithmetic the width brings with it."""
    with about():
        return width * width, int(0.9 * width * width), 10 * width


def for_transformers(model: ModelTree | None, open_keys: list[str]) -> Any:
    """hidden_size, the widest of hidden_sizes, then the same two of text_config."""
    config = _config(model, open_keys)
    width = None
    if config is not None:
        text = config.get("text_config")
        text_config: Mapping[str, Any] = {}
        if isinstance(text, Mapping):
            text_config = cast(Mapping[str, Any], text)
        if "hidden_size" in config:
            width = config["hidden_size"]
        elif "hidden_sizes" in config:
            width = _widest(config["hidden_sizes"])
        elif "hidden_size" in text_config:
            width = text_config["hidden_size"]
        elif "hidden_sizes" in text_config:
            width = _widest(text_config["hidden_sizes"])
    if width is None:
        said = "the model's config has neither hidden_size nor hidden_sizes"
        raise Stops("ValueError", said, *open_keys, late=True)
    return width


def for_accelerate(model: ModelTree | None, open_keys: list[str]) -> Any:
    """hidden_size, then the widest of hidden_sizes, at the top level alone."""
    config = _config(model, open_keys)
    if config is None:
        raise Stops("ValueError", "the model has no config attribute", *open_keys, late=True)
    if "hidden_size" in config:
        return config["hidden_size"]
    if "hidden_sizes" in config:
        return _widest(config["hidden_sizes"])
    said = "model.config has neither hidden_size nor hidden_sizes at its top level"
    raise Stops("ValueError", said, *open_keys, late=True)


def _config(model: ModelTree | None, open_keys: list[str]) -> Mapping[str, Any] | None:
    if model is None:
        raise MissingFact(
            open_keys[0],
            "the bucket sizes follow the model's hidden_size, and no model was named",
            "give --model",
        )
    return model.config


def _widest(sizes: Any) -> Any:
    with about():
        try:
            return max(sizes)
        except ValueError as error:
            raise Stops("ValueError", f"hidden_sizes: {error}", late=True) from error
