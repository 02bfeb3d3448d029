"""All keys of all DeepSpeed releases: types, bounds, defaults, units, first and last release.

    errors(values)                all schema errors of a config
    key("zero_optimization.stage").default_at(Version.parse("0.14.4"))
    strict_at("fp16", version)    whether unknown keys are rejected
    DSConfig.model_validate(...)  the typed config

Names are imported on first use; models of a block are built when a config contains it.
"""

from typing import TYPE_CHECKING

from dsconfig.lazy_imports import lazy_attributes
from dsconfig.schema.version import NEWEST, OLDEST, Version

if TYPE_CHECKING:
    from dsconfig.schema.catalogue import Key, KeyStatus, find, key, keys, strict_at, strict_since
    from dsconfig.schema.config import DSConfig
    from dsconfig.schema.installed import installed_or_newest
    from dsconfig.schema.markers import AUTO, Bounds
    from dsconfig.schema.validation import ErrorKind, SchemaError, errors, known_names

__getattr__ = lazy_attributes(
    __name__,
    {
        "config": ("DSConfig",),
        "validation": ("ErrorKind", "SchemaError", "errors", "known_names"),
        "catalogue": ("Key", "KeyStatus", "find", "key", "keys", "strict_at", "strict_since"),
        "installed": ("installed_or_newest",),
        "markers": ("AUTO", "Bounds"),
    },
)

__all__ = [
    "AUTO",
    "NEWEST",
    "OLDEST",
    "Bounds",
    "DSConfig",
    "ErrorKind",
    "Key",
    "KeyStatus",
    "SchemaError",
    "Version",
    "errors",
    "find",
    "installed_or_newest",
    "key",
    "keys",
    "known_names",
    "strict_at",
    "strict_since",
]
