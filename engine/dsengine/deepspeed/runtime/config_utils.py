"""The base of programs' own config classes, and helpers for a config's dict."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from dsengine.loop.misuse import ArgumentError
from dsengine.observation.printing import script_logger


class DeepSpeedConfigModel(BaseModel):
    """A pydantic model that forbids unknown keys and omits "auto" unless ``strict``.

    A field whose ``json_schema_extra`` has ``deprecated`` logs a warning when it is set. Its value,
    passed through ``new_param_fn``, is assigned to ``new_param`` (dotted for an inner model),
    unless ``set_new_param`` is false; the warning contains ``deprecated_msg``.

    Raises pydantic's ValidationError, and ArgumentError (a ValueError and an AssertionError) if a
    deprecated field and its replacement are both set.
    """

    model_config = ConfigDict(
        validate_default=True,
        validate_assignment=True,
        use_enum_values=True,
        populate_by_name=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    def __init__(self, strict: bool = False, **data: Any) -> None:
        super().__init__(**{k: v for k, v in data.items() if strict or _is_set(k, v)})
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if (
                isinstance(extra, dict)
                and extra.get("deprecated")
                and name in self.model_fields_set
            ):
                self._replace(name, extra)

    def _replace(self, name: str, extra: Mapping[str, Any]) -> None:
        new: str = extra.get("new_param", "")
        parts = [f"{name} is deprecated", f"use {new}" if new else "", extra.get("deprecated_msg")]
        script_logger.warning(": ".join(filter(None, parts)))
        if not new or not extra.get("set_new_param", True):
            return
        value = extra.get("new_param_fn", lambda value: value)(getattr(self, name))
        *path, last = new.split(".")
        model: Any = self
        for field in path:
            model = getattr(model, field)
        if last in model.model_fields_set:
            raise ArgumentError(f"{name} and its replacement {new} are both set: remove {name}")
        setattr(model, last, value)


def _is_set(name: str, value: Any) -> bool:
    return not (isinstance(value, str) and value == "auto") or name == "replace_method"


def get_scalar_param(param_dict: Mapping[str, Any], param_name: str, default: Any) -> Any:
    """Return a value of a config, or ``default`` if it is missing."""
    return param_dict.get(param_name, default)


def dict_raise_error_on_duplicate_keys(ordered_pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; usable as ``object_pairs_hook`` of ``json.load``.

    Raises ValueError with the duplicate keys.
    """
    pairs = list(ordered_pairs)
    names = [name for name, _ in pairs]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"duplicate keys: {', '.join(duplicates)}")
    return dict(pairs)


__all__ = [
    "DeepSpeedConfigModel",
    "dict_raise_error_on_duplicate_keys",
    "get_scalar_param",
]
