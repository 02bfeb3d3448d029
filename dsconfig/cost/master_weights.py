"""Master weights as specified for an estimate, instead of those of the config.

torchtune, and scripts that pass bf16 weights to ``fully_shard`` or DDP, train without a copy: the
optimizer updates the bf16 weights, and its states have their dtype. DeepSpeed has no such mode, and
reads whether its copy is bf16 from the config.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dsconfig.facts.facts import Facts
from dsconfig.facts.inputs import FactError
from dsconfig.facts.naming import named
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Effective, Numerics, Precision
from dsconfig.schema.former_names import with_current_names
from dsconfig.schema.paths import BF16, GRAD_ACCUM_DTYPE
from dsconfig.source.plain import shown
from dsconfig.source.pointer import value_at

ARGUMENT = "master_weights"
MASTERS = BF16 / "bf16_master_weights_and_grads"
STATES = BF16 / "bf16_optimizer_states"
ON_DEEPSPEED = f"set {MASTERS} and {STATES} to true in the config"


def specified(facts: Facts) -> str | None:
    """Return the specified master weights; None: those of the config."""
    return facts.training.master_weights if facts.training else None


def numerics_with(numerics: Numerics, kind: str | None) -> Numerics:
    """Return the dtypes with these master weights; unchanged for None and ``fp32``."""
    if kind in (None, "fp32"):
        return numerics
    narrow = replace(numerics, master_dtype=Precision.BF16, state_dtype=Precision.BF16)
    return replace(narrow, grad_accum_dtype=Precision.BF16) if kind == "none" else narrow


def master_keys(numerics: Numerics) -> dict[str, bool]:
    """Return the keys of the bf16 block with which DeepSpeed has these master weights."""
    narrow = numerics.precision is numerics.master_dtype is Precision.BF16
    return {path.name: True for path in (MASTERS, STATES)} if narrow else {}


def priced(effective: Effective, facts: Facts) -> Effective:
    """Return the settings with the master weights of the facts, without checking them."""
    numerics = numerics_with(effective.numerics, specified(facts))
    return effective if numerics is effective.numerics else replace(effective, numerics=numerics)


def with_master_weights(effective: Effective, facts: Facts, program: Runtime) -> Effective:
    """Return the settings with the master weights of the facts.

    Raises FactError (a ValueError) naming the key, if the config or the program contradicts them.
    """
    kind = specified(facts)
    if kind is None:
        return effective
    problem = next(_contradictions(kind, effective, program), None)
    if problem is not None:
        raise FactError(ARGUMENT, problem)
    return priced(effective, facts)


def _contradictions(kind: str, effective: Effective, program: Runtime) -> Iterator[str]:
    precision = effective.numerics.precision
    if kind == "fp32":
        yield from _opposite_keys(kind, effective.config)
        return
    if precision is not Precision.BF16:
        yield (
            f"{kind} requires training in bf16, and this run trains in {precision}; set "
            f"bf16.enabled to true, specify {named('precision')}, or remove {named(ARGUMENT)}"
        )
    yield from _opposite_keys(kind, effective.config)
    if not program.runs_deepspeed:
        return
    if kind == "none":
        yield (
            "none is not possible with DeepSpeed, which updates a copy of 16-bit weights; "
            f"specify bf16 and {ON_DEEPSPEED}, or estimate for dsengine ({named('runtime')})"
        )
    elif effective.numerics.master_dtype is not Precision.BF16:
        yield f"bf16, but DeepSpeed keeps fp32 master weights with this config; {ON_DEEPSPEED}"


def _opposite_keys(kind: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a contradiction for each key of the config with the opposite value."""
    current = with_current_names(dict(config))
    for path in (MASTERS, STATES):
        value = value_at(current, path, None)
        if isinstance(value, bool) and value is (kind == "fp32"):
            other = "bf16" if value else "fp32"
            yield (
                f"{kind}, but {path} is {str(value).lower()}; specify {other}, or set the "
                f"key to {str(not value).lower()}"
            )
    sums = value_at(current, GRAD_ACCUM_DTYPE, None)
    if kind == "none" and sums in ("fp32", "fp16"):
        yield f"{kind} has bf16 gradients, but {GRAD_ACCUM_DTYPE} is {shown(sums)}; remove the key"
