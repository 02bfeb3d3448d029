"""What programs derive their own config classes from, and small readers of a config's dict."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from dsengine.loop.misuse import ArgumentError
from dsengine.observation.printing import script_logger


class DeepSpeedConfigModel(BaseModel):
    """A closed pydantic model: keys that it has not are refused, by name or alias, and "auto" is
    left out unless ``strict``.

    A field whose ``json_schema_extra`` has ``deprecated`` is logged when it is set. Where it names
    a ``new_param`` (dotted for one of an inner model), that is given the value, passed through
    ``new_param_fn``, unless ``set_new_param`` is false; ``deprecated_msg`` is said with it.

    Raises pydantic's ValidationError, and ArgumentError (a ValueError and an AssertionError) where
    a deprecated field stands beside the one that replaced it.
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
        super().__init__(**{k: v for k, v in data.items() if strict or _is_said(k, v)})
        for name, field in type(self).model_fields.items():
            said = field.json_schema_extra
            if isinstance(said, dict) and said.get("deprecated") and name in self.model_fields_set:
                self._replace(name, said)

    def _replace(self, name: str, about: Mapping[str, Any]) -> None:
        new: str = about.get("new_param", "")
        said = [f"{name} is deprecated", f"use {new}" if new else "", about.get("deprecated_msg")]
        script_logger.warning(": ".join(filter(None, said)))
        if not new or not about.get("set_new_param", True):
            return
        value = about.get("new_param_fn", lambda given: given)(getattr(self, name))
        *inner, last = new.split(".")
        holder: Any = self
        for each in inner:
            holder = getattr(holder, each)
        if last in holder.model_fields_set:
            raise ArgumentError(f"{name} stands beside {new}, which replaced it: leave {name} out")
        setattr(holder, last, value)


def _is_said(name: str, value: Any) -> bool:
    return not (isinstance(value, str) and value == "auto") or name == "replace_method"


def get_scalar_param(param_dict: Mapping[str, Any], param_name: str, default: Any) -> Any:
    """Return a value of a config, or ``default`` where it has none."""
    return param_dict.get(param_name, default)


def dict_raise_error_on_duplicate_keys(ordered_pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict: an ``object_pairs_hook`` for ``json.load``.

    Raises ValueError with the keys that stand there twice.
    """
    pairs = list(ordered_pairs)
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"keys that stand there twice: {', '.join(twice)}")
    return dict(pairs)


__all__ = [
    "DeepSpeedConfigModel",
    "dict_raise_error_on_duplicate_keys",
    "get_scalar_param",
]
