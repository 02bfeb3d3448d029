"""Names of keys and their defaults, as DeepSpeed's constants spell them.

``GRADIENT_CLIPPING`` is the key, ``GRADIENT_CLIPPING_DEFAULT`` what it is where a file has none;
of the plain keys at the top of a config.
"""

from typing import Any

import dsconfig
from dsengine.deepspeed.refusals import missing


def __getattr__(name: str) -> Any:
    key = name.removesuffix("_DEFAULT").lower()
    defaults = dsconfig.config_values({})
    if not name.isupper() or isinstance(defaults.get(key, {}), dict):
        return missing(__name__, "runtime.constants")(name)
    return defaults[key] if name.endswith("_DEFAULT") else key
