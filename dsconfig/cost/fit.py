"""Whether an estimated option fits in device memory, host memory and on the disk."""

from dataclasses import dataclass

from dsconfig.cost.estimate import Option, TierMemory
from dsconfig.facts.facts import Facts
from dsconfig.facts.naming import named
from dsconfig.report.sizes import in_gib, size
from dsconfig.runtimes.effective import Effective

TO_SPARE = 0.05
"""Fraction of each memory to keep free: the error of the estimate is of that size."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``shortfall`` describes what does not fit; ``tight``: less than 5 % of one memory is left."""

    shortfall: str = ""
    tight: bool = False

    @property
    def fits(self) -> bool:
        return not self.shortfall

    @property
    def has_headroom(self) -> bool:
        return not self.shortfall and not self.tight


def verdict_on(option: Option, effective: Effective, facts: Facts) -> Verdict:
    """Compare an estimate with device, host memory and disk, as far as they are known.

    Also tight if the pools of all CUDA streams together leave less than 5 % of the device: they
    would be flushed in every step.
    """
    shortfalls = [
        f"exceeds {fit.device} by {size(-fit.headroom_bytes)}"
        for fit in option.fits
        if not fit.fits
    ]
    required = [(option.device.visible_bytes, fit.memory_bytes) for fit in option.fits]
    host = facts.host
    shortfalls.append(_host_shortfall(option.host, facts))
    if host is not None and host.usable_bytes is not None:
        required.append((option.host.peak_bytes, host.usable_bytes))
    shortfalls.append(_disk_shortfall(option.nvme, facts, effective))
    if host is not None and host.nvme_bytes is not None and option.nvme.bytes:
        required.append((option.nvme.bytes, host.nvme_bytes))
    tight = any(needed > limit * (1 - TO_SPARE) for needed, limit in required)
    return Verdict("; ".join(each for each in shortfalls if each), tight)


def host_or_disk_shortfall(
    host: TierMemory, nvme: TierMemory, facts: Facts, effective: Effective | None = None
) -> str:
    """Describe by how much host memory or a disk of known size is exceeded; empty if both suffice.

    With ``effective``, a config that needs a disk and names none does not fit either.
    """
    return _host_shortfall(host, facts) or _disk_shortfall(nvme, facts, effective)


def _host_shortfall(host: TierMemory, facts: Facts) -> str:
    """Describe the host memory shortfall, including building the model."""
    usable = facts.host.usable_bytes if facts.host else None
    if usable is None or host.peak_bytes <= usable:
        return ""
    building = " to build the model" if host.is_building_worst else ""
    needs = f"needs {size(host.peak_bytes, 0)} of host memory per node{building}"
    return f"{needs}, {in_gib(usable, 0)} available"


def _disk_shortfall(nvme: TierMemory, facts: Facts, effective: Effective | None = None) -> str:
    """Describe the NVMe shortfall: no directory (if ``effective`` is given) or too little space.

    Empty if it fits or the size is unknown.
    """
    if nvme.bytes and effective is not None and not _names_disk(effective, facts):
        return f"needs {size(nvme.bytes, 0)} of NVMe: specify {named('nvme')}"
    free = facts.host.nvme_bytes if facts.host else None
    if free is None or nvme.bytes <= free:
        return ""
    return f"needs {size(nvme.bytes, 0)} of NVMe per node, {in_gib(free, 0)} free"


def _names_disk(effective: Effective, facts: Facts) -> bool:
    """Return whether the config or the facts name an NVMe directory."""
    zero = effective.zero
    blocks = (zero.offload_optimizer, zero.offload_param)
    named = any(block is not None and block.nvme_path for block in blocks)
    return named or (facts.host is not None and facts.host.nvme_path is not None)
