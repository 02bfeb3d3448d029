"""What nobody said, and what decides whether a run fits: kernels of loss and attention, release.

A verdict rests on what is usual where nothing is said. Where another answer would turn it, the
answer belongs to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from dsconfig.cost.activations import is_flash
from dsconfig.cost.deepspeed.releases import BEFORE_CHANGES
from dsconfig.cost.estimate import Option
from dsconfig.cost.estimator import estimate_option
from dsconfig.cost.families import family_of
from dsconfig.cost.loss import Loss
from dsconfig.cost.search import verdict_on
from dsconfig.facts.facts import Facts
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Effective


@dataclass(frozen=True, slots=True)
class Assumption:
    """Another answer, by the flag that would give it, and what the run needs then."""

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
    """Answers that turn the verdict of ``option`` on a known card, one for each question."""
    if not option.fits:
        return ()
    fits = verdict_on(option, effective, facts).fits
    asked = [] if fits else list(_kernels(facts))
    answers = [_answered(flag, effective, others, program) for flag, others in asked]
    found = [each for each in answers if each.fits]
    if program.runs_deepspeed and not release_is_known:
        # The newest of the releases before a change at which the verdict is another.
        older = (each for each in BEFORE_CHANGES if each < program.version)
        answers = (
            _answered(f"--deepspeed-version {each}", effective, facts, program.at(each))
            for each in older
        )
        found += islice((each for each in answers if each.fits is not fits), 1)
    return tuple(found)


def _answered(flag: str, effective: Effective, facts: Facts, program: Runtime) -> Assumption:
    option = estimate_option(effective, facts, runtime=program)
    return Assumption(flag, option, verdict_on(option, effective, facts).fits)


_SETTLES_LOSS = {"loss", "use_liger_kernel", "torch_compile"}


def _kernels(facts: Facts) -> Iterator[tuple[str, Facts]]:
    """Kernels that hold less than what is assumed, by flag, with the run that has them."""
    if facts.sequence_length is None:
        return
    if not _SETTLES_LOSS & facts.arguments.keys():
        # Cross entropy in one kernel: the plain one, which is assumed, holds most.
        yield f"--loss {Loss.FUSED}", facts.with_arguments({"loss": str(Loss.FUSED)})
    shape, name = facts.architecture, "attn_implementation"
    # FlashAttention, for a family that is written out where nobody asks for it.
    if shape is None or is_flash(facts) or name in facts.arguments:
        return
    if family_of(shape).has_flash:
        yield "--attention flash", facts.with_arguments({name: "flash_attention_2"})
