"""Our own engine: the key set of the newest DeepSpeed, with every "auto" resolved."""

from collections.abc import Mapping
from typing import Any, ClassVar

from dsconfig.runtimes.base import AutoFate, Runtime
from dsconfig.schema.version import NEWEST, Version

KEPT_FEATURES = frozenset(
    {
        ("sparse_gradients",),
        ("elasticity",),
        ("zero_optimization", "mics_shard_size"),
    }
)
"""Keys that DeepSpeed removed and the engine still serves."""


class DsEngine(Runtime):
    name = "dsengine"
    fills_by_itself: ClassVar[bool] = False
    must_fit_on: ClassVar[tuple[str, ...]] = ("dsengine", "deepspeed")
    ends_in_deepspeed: ClassVar[bool] = False

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoFate:
        # Imported here: it brings DeepSpeed's whole key set, and most configs have no such key.
        from dsconfig.runtimes.deepspeed import NATIVE_AUTO

        return AutoFate.NATIVE if path in NATIVE_AUTO else AutoFate.FILLED


def dsengine(version: Version = NEWEST) -> DsEngine:
    """The engine. Its key set does not depend on the DeepSpeed release given."""
    return DsEngine(version=version)
