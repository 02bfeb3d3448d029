"""Sizes and names as people read them."""

from dsconfig.cost.estimate import Option

EIGHTHS = " ▏▎▍▌▋▊▉█"
_PLACES = {"cpu": "CPU", "nvme": "NVMe"}


def both(count: float) -> str:
    """Decimal and binary side by side: ``9.00 GB (8.38 GiB)``; ``-`` for nothing."""
    if not count:
        return "-"
    return f"{count / 1e9:.2f} GB ({count / 2**30:.2f} GiB)"


def gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB"


def moved(option: Option) -> str:
    """``optimizer + parameters to CPU``; nothing where all stays on the device."""
    places = {"optimizer": option.offload_optimizer, "parameters": option.offload_param}
    left = {what: place for what, place in places.items() if place != "none"}
    if len(set(left.values())) == 1:
        return f"{' + '.join(left)} to {_PLACES[next(iter(left.values()))]}"
    return ", ".join(f"{what} to {_PLACES[where]}" for what, where in left.items())


def label(option: Option) -> str:
    """``stage 3, optimizer + parameters to CPU``."""
    parts = [f"stage {option.stage}", moved(option)]
    return ", ".join(part for part in parts if part)


def bar(value: float, largest: float, width: int) -> str:
    """A bar of block characters, to an eighth of a column."""
    eighths = round(value / largest * width * 8) if largest else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")
