"""What nobody said, and what decides whether a run fits: kernels of loss and attention, release.

A verdict rests on what is usual where nothing is said. Where another answer would turn it, the
answer belongs to it.
"""

from dataclasses import dataclass

from dsconfig.cost.activations import is_flash
from dsconfig.cost.deepspeed.releases import BEFORE_CHANGES
from dsconfig.cost.estimate import Option
from dsconfig.cost.families import family_of
from dsconfig.cost.loss import Loss
from dsconfig.cost.pricing import price
from dsconfig.cost.search import verdict_on
from dsconfig.facts.facts import Facts
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Effective


@dataclass(frozen=True, slots=True)
class Unsaid:
    """Another answer, by the flag that would give it, and what the run needs then."""

    flag: str
    option: Option
    fits: bool


def deciding(
    option: Option,
    effective: Effective,
    facts: Facts,
    program: Runtime,
    *,
    release_is_known: bool,
) -> tuple[Unsaid, ...]:
    """Answers that turn the verdict of ``option`` on a known card, one for each question."""
    if not option.fits:
        return ()
    fits = verdict_on(option, effective, facts).fits
    found: list[Unsaid | None] = []
    if not fits:
        found = [_loss(effective, facts, program), _attention(effective, facts, program)]
    if program.ends_in_deepspeed and not release_is_known:
        found.append(_release(effective, facts, program, fits=fits))
    return tuple(each for each in found if each is not None)


def _answered(flag: str, effective: Effective, facts: Facts, program: Runtime) -> Unsaid:
    option = price(effective, facts, runtime=program)
    return Unsaid(flag, option, verdict_on(option, effective, facts).fits)


def _loss(effective: Effective, facts: Facts, program: Runtime) -> Unsaid | None:
    """Cross entropy in one kernel: the plain one, which is assumed, holds most."""
    if facts.sequence_length is None or _SETTLES_LOSS & facts.arguments.keys():
        return None
    asked = facts.with_arguments({"loss": str(Loss.FUSED)})
    other = _answered(f"--loss {Loss.FUSED}", effective, asked, program)
    return other if other.fits else None


def _attention(effective: Effective, facts: Facts, program: Runtime) -> Unsaid | None:
    """FlashAttention, for a family that is written out where nobody asks for it."""
    shape = facts.architecture
    if facts.sequence_length is None or shape is None or is_flash(facts):
        return None
    if "attn_implementation" in facts.arguments or not family_of(shape).has_flash:
        return None
    asked = facts.with_arguments({"attn_implementation": "flash_attention_2"})
    other = _answered("--attention flash", effective, asked, program)
    return other if other.fits else None


_SETTLES_LOSS = {"loss", "use_liger_kernel", "torch_compile"}


def _release(effective: Effective, facts: Facts, program: Runtime, *, fits: bool) -> Unsaid | None:
    """The newest of the releases before a change at which the verdict is another."""
    older = (each for each in BEFORE_CHANGES if each < program.version)
    answers = (
        _answered(f"--deepspeed-version {each}", effective, facts, program.at(each))
        for each in older
    )
    return next((each for each in answers if each.fits is not fits), None)
