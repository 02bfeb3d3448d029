"""How much host memory a run requires, and whether that was checked."""

from dataclasses import replace
from typing import TYPE_CHECKING

from dsconfig.facts import machine
from dsconfig.report.sizes import size

if TYPE_CHECKING:
    from dsconfig.cost.estimate import TierMemory
    from dsconfig.facts import Facts

HERE = "this machine"
UNCHECKED = "not checked (specify --host-memory)"
ASSUMED = "assuming enough host memory (RAM); specify --host-memory to check it"


def requirement(host: "TierMemory", facts: "Facts", bound: str = "") -> str:
    """Return ``Host memory: 50.2 GiB per node required; 117 GiB available.``; "" if none is."""
    if not host.peak_bytes:
        return ""
    when = " to build the model" if host.is_building_worst else ""
    return sentence(host.peak_bytes, facts, bound, when)


def sentence(count: int, facts: "Facts", bound: str = "", when: str = "") -> str:
    """Return ``Host memory: 50.2 GiB per node required; 117 GiB available.``"""
    return f"Host memory: {bound}{size(count)} per node required{when}; {available(facts)}."


def available(facts: "Facts") -> str:
    """Return the host memory per node that is available, or that it was not checked."""
    usable = facts.host.usable_bytes if facts.host is not None else None
    if usable is None:
        return UNCHECKED
    where = " on this machine" if facts.origins.get("host") == HERE else ""
    return f"{size(usable, 0)} available{where}"


def with_memory_here(facts: "Facts", devices: list[tuple[str, int]]) -> "Facts":
    """Return the facts with this machine's host memory if its ``devices`` are those of the facts.

    ``devices`` are (name, bytes). Nothing changes if the host memory is known.
    """
    host = facts.host or machine.HostFacts()
    if host.memory_bytes is not None or facts.device is None or not devices:
        return facts
    if _name(devices[0][0]) != facts.device.name:
        return facts
    host = replace(host, memory_bytes=machine.host_memory_bytes())
    return replace(facts, host=host, origins={**facts.origins, "host": HERE})


def _name(device: str) -> str:
    """Return the catalogue's name of a device, or its own."""
    try:
        return machine.named_device(device).name
    except ValueError:
        return device
