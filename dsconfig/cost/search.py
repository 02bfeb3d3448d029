"""Search over stage, offload, micro batch, recomputation and buckets."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from dsconfig.cost.choices import (
    USUAL,
    Choice,
    usual_config,
    with_recomputation,
)
from dsconfig.cost.estimate import Estimate, Option
from dsconfig.cost.pricing import inputs_of, price, with_fits
from dsconfig.cost.step_time import StepTime, step_time
from dsconfig.facts import Facts, TrainingFacts
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Effective

BUCKETS = (500_000_000, 200_000_000, 50_000_000)
MICRO_BATCHES = tuple(2**power for power in range(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One config with its price and expected time; ``reason`` says why it lost, "" if it won."""

    choice: Choice
    micro_batch: int
    accumulation: int
    recompute: bool
    bucket: int
    effective: Effective
    option: Option
    time: StepTime
    reason: str = ""

    @property
    def label(self) -> str:
        again = ", recompute" if self.recompute else ""
        return (
            f"{self.choice.label}, micro batch {self.micro_batch} x {self.accumulation}{again}, "
            f"buckets {self.bucket:.0e}"
        )


def tune(facts: Facts, *, runtime: str | Runtime = "dsengine") -> tuple[Candidate, ...]:
    """All candidates, the winner first, then by expected time per sample; misfits last.

    Raises ValueError when model, number of devices or the card's memory is unknown.
    """
    if facts.model is None or facts.world_size is None:
        raise ValueError("tune needs the model and the devices: give --model and --gpus")
    if facts.device is None or facts.device.memory_bytes is None:
        raise ValueError("tune needs the card: give --device or --device-memory")
    found = list(_candidates(facts, runtime))
    fitting = [each for each in found if not _misfit(each, facts)]
    fitting.sort(key=lambda each: (each.time.seconds_per_sample, each.option.device.visible_bytes))
    best = fitting[0] if fitting else None
    judged = [
        each if each is best else replace(each, reason=_slower(each, best)) for each in fitting
    ]
    out = [each for each in found if _misfit(each, facts)]
    out.sort(key=lambda each: each.option.device.visible_bytes)
    return tuple(judged + [replace(each, reason=_misfit(each, facts)) for each in out])


def _candidates(facts: Facts, runtime: str | Runtime) -> Iterator[Candidate]:
    """Larger micro batches are not tried where a smaller one is already too big."""
    for choice in USUAL:
        for recompute in (False, True):
            for bucket in BUCKETS if choice.stage else BUCKETS[:1]:
                for micro, accumulation in _batches(facts):
                    made = _candidate(
                        facts, runtime, choice, micro, accumulation, recompute, bucket
                    )
                    yield made
                    if _misfit(made, facts):
                        break


def _candidate(
    facts: Facts,
    runtime: str | Runtime,
    choice: Choice,
    micro: int,
    accumulation: int,
    recompute: bool,
    bucket: int,
) -> Candidate:
    training = replace(facts.training or TrainingFacts(), gradient_accumulation_steps=accumulation)
    here = replace(facts, training=training)
    effective = usual_config(here, choice, micro_batch=micro)
    zero = replace(effective.zero, reduce_bucket_size=bucket, allgather_bucket_size=bucket)
    effective = replace(effective, zero=zero)
    if recompute:
        effective = with_recomputation(effective)
    return Candidate(
        choice=choice,
        micro_batch=micro,
        accumulation=accumulation,
        recompute=recompute,
        bucket=bucket,
        effective=effective,
        option=price(effective, here, runtime=runtime),
        time=step_time(effective, here),
    )


def _batches(facts: Facts) -> list[tuple[int, int]]:
    """(micro batch, accumulation): exact divisions of the global batch where one is asked."""
    training = facts.training
    if training and training.micro_batch_size:
        return [(training.micro_batch_size, training.gradient_accumulation_steps or 1)]
    ranks = facts.data_parallel or 1
    if training is None or training.global_batch_size is None:
        return [(micro, 1) for micro in MICRO_BATCHES]
    per_rank, rest = divmod(training.global_batch_size, ranks)
    if rest or per_rank < 1:
        raise ValueError(
            f"--global-batch {training.global_batch_size} is not a multiple of {ranks} ranks"
        )
    return [(micro, per_rank // micro) for micro in range(1, per_rank + 1) if per_rank % micro == 0]


def _misfit(candidate: Candidate, facts: Facts) -> str:
    return misfit(candidate.option, candidate.effective, facts)


def _slower(candidate: Candidate, best: Candidate | None) -> str:
    if best is None:
        return ""
    ratio = candidate.time.seconds_per_sample / best.time.seconds_per_sample
    if ratio < 1.005:
        more = candidate.option.device.visible_bytes - best.option.device.visible_bytes
        return f"as fast, {more / 2**30:.1f} GiB more" if more else "as fast, and no smaller"
    causes = {
        "offload": candidate.time.offload / candidate.time.samples,
        "communication": candidate.time.communication / candidate.time.samples,
        "recomputation" if candidate.recompute else "small passes": candidate.time.compute
        / candidate.time.samples,
    }
    base = {
        "offload": best.time.offload / best.time.samples,
        "communication": best.time.communication / best.time.samples,
    }
    compute = best.time.compute / best.time.samples
    cause = max(causes, key=lambda name: causes[name] - base.get(name, compute))
    return f"{ratio:.2f}x the time per sample: {cause}"


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


def table(facts: Facts, *, runtime: str | Runtime = "dsengine") -> Estimate:
    """Every usual choice priced, each judged against the card given, or all known cards.

    Raises ValueError when the facts name no model or no number of devices.
    """
    options = [price(usual_config(facts, choice), facts, runtime=runtime) for choice in USUAL]
    if facts.device is None:
        options = [with_fits(option, list(known_cards())) for option in options]
    inputs = inputs_of(usual_config(facts, USUAL[-1]), facts, runtime)
    return Estimate(options=tuple(options), inputs=inputs)


@lru_cache(maxsize=1)
def known_cards() -> tuple[tuple[str, int], ...]:
    """(name, usable bytes) of the catalogue, smallest first."""
    from dsconfig.facts import catalogue

    cards = [(card["name"], card["memory_bytes_usable"]) for card in catalogue.gpus()]
    return tuple(sorted(cards, key=lambda card: card[1]))
