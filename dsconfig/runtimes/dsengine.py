"""dsengine: the keys of the newest DeepSpeed, with every "auto" resolved."""

from collections.abc import Mapping
from typing import Any, ClassVar

from dsconfig.runtimes.base import (
    IN_THE_SCRIPT,
    SELECTIVE_RECOMPUTATION,
    SELECTIVELY_BY_THE_MODEL,
    AutoHandling,
    Instruction,
    Runtime,
)
from dsconfig.runtimes.capabilities import steps_of
from dsconfig.schema import catalogue


class DsEngine(Runtime):
    """The engine. Its keys do not depend on the given DeepSpeed release."""

    name = "dsengine"
    fills_auto: ClassVar[bool] = False
    must_fit_on: ClassVar[tuple[str, ...]] = ("dsengine", "deepspeed")
    set_elsewhere: ClassVar[Mapping[str, Instruction]] = {
        SELECTIVE_RECOMPUTATION: SELECTIVELY_BY_THE_MODEL,
        **IN_THE_SCRIPT,
        **steps_of("dsengine"),
    }
    eight_bit_optimizer: ClassVar[Instruction | None] = None
    recomputes_from_config: ClassVar[bool] = True
    recomputes_selectively: ClassVar[bool] = True
    precedence: ClassVar[tuple[str, ...]] = ("config", "training", "launch")
    runs_deepspeed: ClassVar[bool] = False

    @property
    def described(self) -> str:
        return self.name

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoHandling:
        # An argument of an optimizer or a schedule; looking it up would import all of them.
        known = catalogue.find(path) if path[1:2] != ("params",) else None
        native = known is not None and known.means_auto
        return AutoHandling.NATIVE if native else AutoHandling.FILLED


dsengine = DsEngine  # looked up by program name
