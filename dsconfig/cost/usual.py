"""Estimates of the usual choices of stage and tiers, for a model without a config."""

from dataclasses import replace
from functools import lru_cache

from dsconfig.cost.choices import USUAL, supports_stage, usual_config
from dsconfig.cost.estimate import Estimate
from dsconfig.cost.estimator import estimate_option, fits_on, inputs_of
from dsconfig.facts.facts import Facts
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import Runtime

with lazy_imports():
    from dsconfig.facts import catalogue


def table(facts: Facts, *, runtime: str | Runtime = "dsengine") -> Estimate:
    """Estimate every usual choice against the given device, or all known devices.

    Raises ValueError if the model or the number of devices is unknown.
    """
    choices = [choice for choice in USUAL if supports_stage(facts, choice.stage)]
    options = [
        estimate_option(usual_config(facts, choice), facts, runtime=runtime) for choice in choices
    ]
    inputs = inputs_of(usual_config(facts, USUAL[-1]), facts, runtime)
    if facts.device is None:
        devices = list(known_devices(str(inputs["precision"])))
        options = [replace(each, fits=fits_on(devices, each.device)) for each in options]
    return Estimate(options=tuple(options), inputs=inputs)


@lru_cache(maxsize=4)
def known_devices(precision: str = "") -> tuple[tuple[str, int], ...]:
    """Return (name, usable bytes) of desktop and server GPUs with the precision, smallest first."""
    devices = [
        (gpu["name"], gpu["memory_bytes_usable"])
        for gpu in catalogue.gpus()
        if (gpu["bf16"] or precision != "bf16") and "Laptop" not in gpu["name"]
    ]
    return tuple(sorted(devices, key=lambda device: device[1]))
