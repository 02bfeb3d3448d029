"""Names of keys and their defaults, as in DeepSpeed's constants.

``GRADIENT_CLIPPING`` is the key, ``GRADIENT_CLIPPING_DEFAULT`` its default. Only for top-level keys
that are not blocks.
"""

from typing import Any

import dsconfig
from dsengine.deepspeed.names import missing


def __getattr__(name: str) -> Any:
    key = name.removesuffix("_DEFAULT").lower()
    defaults = dsconfig.config_values({})
    if not name.isupper() or isinstance(defaults.get(key, {}), dict):
        return missing(__name__, "runtime.constants")(name)
    return defaults[key] if name.endswith("_DEFAULT") else key
