"""What a change of the config does to a run: training, memory and time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsconfig.cost.choices import offload_label
from dsconfig.cost.estimate import Option
from dsconfig.report.sizes import GIB
from dsconfig.runtimes.effective import TIER_NAMES, Effective, Named, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One number of a run before and after, None if it is not known."""

    name: str
    unit: str
    before: float | None
    after: float | None

    @property
    def change(self) -> str:
        """The relative change, such as ``+12%``; empty if a number is unknown or zero."""
        if not self.before or self.after is None:
            return ""
        percent = round((self.after / self.before - 1) * 100)
        return f"{percent:+d}%" if percent else "unchanged"


def training(effective: Effective, client_optimizer: str | None = None) -> dict[str, str]:
    """Return the settings that determine the training result and the sharding, as text by name.

    ``client_optimizer``: class of the script's optimizer, used if the config has none.
    """
    batch, numerics, zero = effective.batch, effective.numerics, effective.zero
    rows: dict[str, str] = {}
    if batch is not None:
        rows["Global batch"] = f"{batch.global_batch} samples"
        rows["Micro batch x accumulation x ranks"] = (
            f"{batch.micro_batch} x {batch.accumulation} x {batch.data_parallel}"
        )
    else:
        rows["Global batch"] = "not determined"
    rows["Precision"] = _precision(effective)
    rows["Loss scale"] = _loss_scale(effective)
    rows["Gradient accumulation dtype"] = str(numerics.grad_accum_dtype)
    rows["Communication dtype"] = str(numerics.communication_dtype)
    clipping = effective.gradients.clipping
    rows["Gradient clipping"] = f"norm {clipping:g}" if clipping else "none"
    rows["Optimizer"] = _named(effective.optimizer) or client_optimizer or "passed by the script"
    rows["Schedule"] = _named(effective.scheduler) or "none in the config"
    rows["ZeRO stage"] = str(zero.stage)
    tiers = (TIER_NAMES[tier] for tier in (zero.optimizer_tier, zero.parameter_tier))
    rows["Offload"] = offload_label(*tiers) or "none"
    rows["Activation checkpointing block"] = (
        "present" if effective.activation_checkpointing.enabled else "absent"
    )
    return rows


def _precision(effective: Effective) -> str:
    numerics = effective.numerics
    parts = [str(numerics.precision)]
    if numerics.autocast is not None:
        parts.append(f"torch.autocast to {numerics.autocast}")
    if numerics.precision is not Precision.FP32:
        parts.append(f"{numerics.master_dtype} master weights, {numerics.state_dtype} states")
    return ", ".join(parts)


def _loss_scale(effective: Effective) -> str:
    scale = effective.numerics.loss_scale
    if scale is None:
        return "none"
    if scale.static is not None:
        return f"fixed at {scale.static:g}"
    return f"dynamic from 2^{scale.initial_power}, window {scale.window}"


def _named(named: Named | None) -> str:
    if named is None:
        return ""
    shown = ", ".join(f"{name} {_value(value)}" for name, value in named.params.items())
    return f"{named.type} ({shown})" if shown else named.type


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return f"{value:g}" if isinstance(value, float) else str(value)


def changed_rows(
    before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield (name, before, after) of the rows that differ; ``-`` for a missing one."""
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name, "-"), after.get(name, "-")
        if was != now:
            yield name, was, now


def quantities(before: Option | None, after: Option | None) -> list[Quantity]:
    """Return memory and time of two estimates; those that are zero in both are left out."""
    was, now = _numbers(before), _numbers(after)
    rows = (
        Quantity(name=name, unit=unit, before=was.get(name), after=now.get(name))
        for name, unit in _UNITS.items()
    )
    return [row for row in rows if row.before or row.after]


def _numbers(option: Option | None) -> dict[str, float]:
    if option is None:
        return {}
    memory = (option.device.needed_bytes, option.host.peak_bytes, option.nvme.bytes)
    numbers = [count / GIB for count in memory]
    if option.step is not None:
        numbers += [option.step.seconds, option.step.tokens_per_second_per_gpu]
    return dict(zip(_UNITS, numbers, strict=False))


_UNITS = {
    "Required per GPU": "GiB",
    "Host memory per node": "GiB",
    "NVMe per node": "GiB",
    "Step time": "s",
    "Tokens/s per GPU": "",
}
