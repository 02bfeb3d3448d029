"""Whether a priced config goes into the hardware: cards, main memory and disk."""

from dsconfig.cost.estimate import Option
from dsconfig.facts.facts import Facts
from dsconfig.runtimes.effective import Effective

GIB = 2**30


def misfit(option: Option, effective: Effective, facts: Facts) -> str:
    """What it has too little of, in words; empty where it fits all that is known."""
    for fit in option.fits:
        if not fit.fits:
            return f"{-fit.headroom_bytes / GIB:.1f} GiB too much for {fit.device}"
    return host_misfit(option, facts) or _nvme_misfit(option, effective, facts)


def host_misfit(option: Option, facts: Facts) -> str:
    """The same for main memory alone, building the model included."""
    memory = facts.host.memory_bytes if facts.host else None
    if memory is None or option.host.peak_bytes <= memory:
        return ""
    building = " to build the model" if option.host.peak_bytes > option.host.bytes else ""
    return f"needs {option.host.peak_bytes / GIB:.0f} GiB of main memory per node{building}"


def _nvme_misfit(option: Option, effective: Effective, facts: Facts) -> str:
    """Disk is there where the config or the facts name a directory on it."""
    if not option.nvme.bytes:
        return ""
    host, zero = facts.host, effective.zero
    blocks = (zero.offload_optimizer, zero.offload_param)
    named = any(block is not None and block.nvme_path for block in blocks)
    if not named and (host is None or host.nvme_path is None):
        return "needs NVMe: give --nvme"
    short = host and host.nvme_bytes is not None and option.nvme.bytes > host.nvme_bytes
    return f"needs {option.nvme.bytes / GIB:.0f} GiB of NVMe per node" if short else ""
