"""Settings of an offloaded optimizer with a minimal config."""

from dataclasses import replace
from typing import Any

from dsconfig.runtimes.effective import effective
from dsengine.tiers import OffloadSettings

CONFIG = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}


def offload_settings(**changes: Any) -> OffloadSettings:
    settings = OffloadSettings.of(effective(CONFIG))
    assert settings is not None
    return replace(settings, **changes)
