"""All keys of all DeepSpeed releases: types, bounds, defaults, units, first and last release.

    errors(values)                all schema errors of a config
    key("zero_optimization.stage").default_at(Version.parse("0.14.4"))
    strict_at("fp16", version)    whether unknown keys are rejected
    DSConfig.model_validate(...)  the typed config

Names are imported on first use; models of a block are built when a config contains it.
"""

from typing import TYPE_CHECKING

from dsconfig.lazy_imports import lazy_attributes
from dsconfig.schema.version import NEWEST as NEWEST
from dsconfig.schema.version import OLDEST as OLDEST
from dsconfig.schema.version import Version as Version

if TYPE_CHECKING:
    from dsconfig.schema.catalogue import Key as Key
    from dsconfig.schema.catalogue import KeyStatus as KeyStatus
    from dsconfig.schema.catalogue import find as find
    from dsconfig.schema.catalogue import key as key
    from dsconfig.schema.catalogue import keys as keys
    from dsconfig.schema.catalogue import strict_at as strict_at
    from dsconfig.schema.catalogue import strict_since as strict_since
    from dsconfig.schema.config import DSConfig as DSConfig
    from dsconfig.schema.installed import installed_or_newest as installed_or_newest
    from dsconfig.schema.markers import AUTO as AUTO
    from dsconfig.schema.markers import Bounds as Bounds
    from dsconfig.schema.validation import ErrorKind as ErrorKind
    from dsconfig.schema.validation import SchemaError as SchemaError
    from dsconfig.schema.validation import errors as errors
    from dsconfig.schema.validation import known_names as known_names

__getattr__, __all__ = lazy_attributes(__name__, "NEWEST", "OLDEST", "Version")
