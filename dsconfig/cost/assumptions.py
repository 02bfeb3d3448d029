"""Assumptions that decide whether a run fits: kernels of loss and attention, DeepSpeed release.

An estimate uses the usual choice for whatever is not specified. If another choice changes the
verdict, it is reported next to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from dsconfig.cost.activations import is_flash
from dsconfig.cost.deepspeed.releases import BEFORE_CHANGES
from dsconfig.cost.estimate import Option
from dsconfig.cost.estimator import estimate_option
from dsconfig.cost.families import family_of
from dsconfig.cost.fit import verdict_on
from dsconfig.cost.loss import SELECTS_LOSS, Loss
from dsconfig.facts.facts import Facts
from dsconfig.facts.naming import named
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Effective


@dataclass(frozen=True, slots=True)
class Assumption:
    """Another choice, the flag that selects it, and the estimate with it."""

    flag: str
    option: Option
    fits: bool


def decisive_assumptions(
    option: Option,
    effective: Effective,
    facts: Facts,
    program: Runtime,
    *,
    release_is_known: bool,
) -> tuple[Assumption, ...]:
    """Return the choices that change the verdict of ``option`` on a known device, one per
    assumption."""
    if not option.fits:
        return ()
    fits = verdict_on(option, effective, facts).fits
    kernels = [] if fits else list(_kernels(facts))
    alternatives = [_estimated(flag, effective, others, program) for flag, others in kernels]
    decisive = [alternative for alternative in alternatives if alternative.fits]
    if program.runs_deepspeed and not release_is_known:
        # The newest release before a change of memory behavior that has another verdict.
        older = (release for release in BEFORE_CHANGES if release < program.version)
        alternatives = (
            _estimated(named("version", str(release)), effective, facts, program.at(release))
            for release in older
        )
        decisive += islice((other for other in alternatives if other.fits is not fits), 1)
    return tuple(decisive)


def _estimated(flag: str, effective: Effective, facts: Facts, program: Runtime) -> Assumption:
    option = estimate_option(effective, facts, runtime=program)
    return Assumption(flag, option, verdict_on(option, effective, facts).fits)


def _kernels(facts: Facts) -> Iterator[tuple[str, Facts]]:
    """Yield the flags of kernels that need less memory than assumed, with the facts they give."""
    if facts.sequence_length is None:
        return
    if not SELECTS_LOSS & facts.execution.keys():
        # Fused cross entropy: the plain one, which is assumed, needs most.
        yield named("loss", str(Loss.FUSED)), facts.with_execution({"loss": str(Loss.FUSED)})
    shape, name = facts.architecture, "attn_implementation"
    # FlashAttention, for a family whose default attention is eager.
    if shape is None or is_flash(facts) or name in facts.execution:
        return
    if family_of(shape).has_flash:
        yield named("attention", "flash"), facts.with_execution({name: "flash_attention_2"})
