"""``resolve``, ``tune``, ``init`` and ``--fit`` choose the same: they use one search.

Most of the models are wide and shallow: bytes decide, and few layers are estimated quickly.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import dsconfig
from dsconfig.cost.activations import Recompute
from dsconfig.cost.choices import recomputing_selectively
from dsconfig.cost.deepspeed.stage3 import recording_of
from dsconfig.cost.estimator import estimate_if_fits, estimate_option
from dsconfig.cost.limits import WITHOUT_OFFLOAD, limits
from dsconfig.cost.search import any_fits
from dsconfig.cost.search_space import OPTIMIZER, PARAMETERS, STAGE, Candidate, open_space
from dsconfig.cost.timeline import Recorder, Timeline
from dsconfig.cost.tuning import tune
from dsconfig.facts import DeviceFacts, Facts, architectures, parameter_count
from dsconfig.facts.gathering import gather
from dsconfig.project import starter as starters
from dsconfig.project.errors import UsageError
from dsconfig.report.sizes import GIB
from dsconfig.runtimes.base import runtime_of
from dsconfig.runtimes.effective import TIER_NAMES, Tier
from resolver.strategies import wide

A = "auto"
BLOCKS = [
    pytest.param(seeds, id=f"{seeds[0]}-{seeds[-1]}", marks=[pytest.mark.long] * (seeds[0] > 0))
    for seeds in (range(10), range(10, 20), *(range(n, n + 20) for n in range(20, 200, 20)))
]
"""Seeds of cases; `make test-all` runs those that `make test` leaves out."""
MODELS = ("gpt2", "llama-3.2-1b", wide(12_032), wide(16_384))
"""1e8, 1e9, 8e9 and 1.4e10 parameters."""
DEVICES = ("v100-16gb", "v100-32gb", "t4", "a100-40gb", "a100-80gb", "h100", "rtx-4090")
MOVED: tuple[dict[str, Any], ...] = (
    {OPTIMIZER: Tier.HOST},
    {OPTIMIZER: Tier.HOST, PARAMETERS: Tier.HOST},
    {OPTIMIZER: Tier.DEVICE, PARAMETERS: Tier.DEVICE},
    {PARAMETERS: Tier.DEVICE},
)


def case(seed: int) -> tuple[Facts, dict[str, Any]]:
    """Return random facts, and the choices that a file makes explicitly."""
    draw = random.Random(seed)
    ranks = draw.choice([1, 2, 4, 8, 16, 64])
    per_rank = draw.choice([1, 2, 3, 8, 24, 64])
    given: dict[str, Any] = {
        "model": draw.choice(MODELS),
        "gpus": ranks,
        "nodes": -(-ranks // 8),
        "sequence_parallel": 1,  # no degrees: a file that does not say "auto" opens none
        "device": draw.choice(DEVICES),
        "seq_len": draw.choice([256, 1024, 2048, 4096]),
        "learning_rate": 1e-4,
        "host_memory": draw.choice([None, "192GiB", "256GiB", "1TB"]),
        "nvme": draw.choice([None, None, "/local_nvme"]),
    }
    given |= draw.choice(
        [
            {},
            {"global_batch": ranks * per_rank},
            {"global_batch": ranks * per_rank},
            {"micro_batch": draw.choice([1, 2, 4])},
            {"global_batch": ranks * per_rank, "micro_batch": 1},
        ]
    )
    facts = gather(**given)
    recompute = draw.choice([None, None, "none", "selective", "full"])
    if recompute and facts.training:
        arguments = {"gradient_checkpointing": recompute}
        facts = replace(facts, training=replace(facts.training, arguments=arguments))
    fixed: dict[str, Any] = draw.choice([{}, {}, {STAGE: draw.randrange(4)}, draw.choice(MOVED)])
    return facts, fixed


def choices_in(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the choices of a config that have an effect."""
    zero = config["zero_optimization"]
    stage = zero["stage"]
    moved = tuple(
        zero.get(name, {}).get("device", "none") for name in ("offload_optimizer", "offload_param")
    )
    sizes = ["overlap_comm", "reduce_bucket_size"] if stage else []
    sizes += ["allgather_bucket_size"] if stage in (1, 2) else []
    sizes += (
        ["stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"] if stage == 3 else []
    )
    batch = tuple(
        config[name] for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    recomputed = "activation_checkpointing" in config
    return stage, *moved, recomputed, *batch, *(zero[name] for name in sizes)


def choices_of(candidate: Candidate, *, recomputed: bool) -> tuple[Any, ...]:
    """Return the choices of a candidate; ``recomputed``: whether a file states it."""
    choice, sizes = candidate.choice, candidate.choice.buckets
    names = ["overlap_comm", "reduce_bucket_size"] if choice.stage else []
    names += ["allgather_bucket_size"] if choice.stage in (1, 2) else []
    names += ["prefetch_bucket_size", "param_persistence_threshold"] if choice.stage == 3 else []
    return (
        choice.stage,
        TIER_NAMES[choice.optimizer],
        TIER_NAMES[choice.parameters],
        recomputed,
        choice.micro_batch,
        choice.accumulation,
        *(sizes[name] for name in names),
    )


def open_file(facts: Facts, fixed: Mapping[str, Any], *, recomputed: bool) -> dict[str, Any]:
    config = starters.skeleton(1e-4, facts)
    zero = config["zero_optimization"]
    zero["stage"] = fixed.get(STAGE, A)
    for name in (OPTIMIZER, PARAMETERS):
        if name in fixed:
            zero[name] = {"device": TIER_NAMES[fixed[name]]}
    if recomputed:
        config["activation_checkpointing"] = {"partition_activations": False}
    return config


def sets_recomputation(facts: Facts) -> bool:
    return bool(facts.training and "gradient_checkpointing" in facts.training.arguments)


@pytest.mark.parametrize("seeds", BLOCKS)
def test_resolve_tune_and_init_choose_the_same(seeds: range) -> None:
    chosen = 0
    for seed in seeds:
        facts, fixed = case(seed)
        best = winner(facts, fixed)
        agree(facts, fixed, best, seed)
        chosen += best is not None
    assert chosen >= len(seeds) // 2, "most of the models fit"


def winner(facts: Facts, fixed: Mapping[str, Any] | None = None) -> Candidate | None:
    """Return what ``tune`` chooses; None if nothing fits."""
    first = tune(facts, fixed=fixed)[0]
    return None if first.reason else first


def agree(facts: Facts, fixed: Mapping[str, Any], best: Candidate | None, seed: int) -> None:
    """Check that ``resolve`` and ``init`` choose ``best`` too, or reject if there is none."""
    rebuilds = best is not None and best.choice.recompute is Recompute.FULL
    full = rebuilds and not sets_recomputation(facts)
    selects = best is not None and best.choice.recompute is Recompute.SELECTIVE
    # No file can set it: it is a fact of the run.
    here = recomputing_selectively(facts) if selects else facts
    resolution = dsconfig.resolve(open_file(facts, fixed, recomputed=full), here)
    assert resolution.ok == (best is not None), (seed, resolution.diagnostics)
    if best is not None:
        assert choices_in(resolution.config) == choices_of(best, recomputed=full), seed
    if fixed:
        return
    if best is None:
        with pytest.raises(UsageError):
            starters.chosen(facts, 1e-4, runtime_of("dsengine"))
    else:
        starter = starters.chosen(facts, 1e-4, runtime_of("dsengine"))
        assert choices_in(starter.config) == choices_of(best, recomputed=rebuilds), seed


@pytest.mark.parametrize("seeds", BLOCKS)
def test_fit_fewest_gpus_agrees_with_tune(seeds: range) -> None:
    """At that number ``resolve`` and ``init`` choose the same; at the one before nothing fits."""
    seen = set[int | None]()
    for seed in seeds:
        facts, _ = case(seed)
        (fewest,) = limits(with_gpus(facts, None))
        assert fewest.question == "fewest GPUs"
        seen.add(fewest.value)
        if fewest.value is None:
            assert winner(facts) is None, seed
            continue
        agree(with_gpus(facts, fewest.value), {}, fewest.candidate, seed)
        before = possible_gpus(facts, below=fewest.value)
        if before:
            assert winner(with_gpus(facts, max(before))) is None, seed
    assert len(seen) > 1, "not all of them fit one GPU"


def with_gpus(facts: Facts, ranks: int | None) -> Facts:
    """Return the facts with another number of GPUs, eight per node."""
    return replace(facts, world_size=ranks, nodes=ranks and -(-ranks // 8))


def possible_gpus(facts: Facts, *, below: int) -> list[int]:
    """Return the numbers of GPUs that divide the global batch."""
    total = facts.training and facts.training.global_batch_size
    return [ranks for ranks in range(1, below) if not total or total % ranks == 0]


@pytest.mark.parametrize("seed", range(12))
def test_fitting_agrees_with_the_full_estimate(seed: int) -> None:
    facts, fixed = case(seed)
    for runtime in ("deepspeed", "dsengine"):
        space, full_space = (open_space(facts, runtime, fixed) for _ in range(2))
        for choice in space.arrangements():
            priced = full_space.candidate(choice)
            assert space.fitting(choice) == (priced if priced.verdict.fits else None)


def test_fitting_stops_at_the_first_overflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replay of a model that is far too large stops early."""

    def trace(_: Timeline) -> None:
        pytest.fail("replayed to the end")

    monkeypatch.setattr(Timeline, "trace", trace)
    space = open_space(gather(model="llama-3-70b", gpus=1, device="t4", host_memory="64GiB"))
    assert not any_fits(space)


def test_iteration_is_recorded_lazily(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuts = list[int]()
    cut = Recorder.cut
    monkeypatch.setattr(Recorder, "cut", lambda line: (cuts.append(line.total), cut(line))[1])
    facts = gather(model="llama-3.2-1b", gpus=8, seq_len=2048, micro_batch=1)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    effective = dsconfig.resolve(config, facts, runtime="deepspeed").effective
    assert effective is not None
    recording_of.cache_clear()
    full = estimate_option(effective, facts, runtime="deepspeed")
    full_cuts = len(cuts)
    recording_of.cache_clear()
    tight = replace(
        facts, device=DeviceFacts(name="gpu", memory_bytes=full.device.needed_bytes - GIB)
    )
    fitting = estimate_if_fits(effective, tight, runtime="deepspeed", below=lambda *_: True)
    assert fitting is None and len(cuts) < 2 * full_cuts
    again = estimate_option(effective, facts, runtime="deepspeed")
    assert again == full and len(cuts) == 2 * full_cuts


@pytest.mark.parametrize(
    "seed", [0, 2, 3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 4, 5))]
)
def test_fit_answers_agree_with_tune(seed: int) -> None:
    facts, _ = case(seed)
    for limit in limits(facts):
        if limit.value is None or limit.candidate is None or facts.training is None:
            continue
        if limit.question == WITHOUT_OFFLOAD:
            assert not limit.candidate.choice.tiers
            continue
        changes: dict[str, Any] = {}
        if limit.question == "longest sequence (tokens)":
            changes = {"training": replace(facts.training, sequence_length=limit.value)}
        elif limit.question == "largest micro batch":
            training = replace(facts.training, micro_batch_size=limit.value, global_batch_size=None)
            changes = {"training": training}
        elif limit.question == "largest model (parameters)":
            changes = {"model": parameter_count.model(limit.value)}
        else:
            changes = {"world_size": limit.value, "nodes": -(-limit.value // 8)}
        assert limit.candidate.choice == tune(replace(facts, **changes))[0].choice, limit.question


@pytest.mark.parametrize("count", ["2e6", "7e9", "1e12"])
def test_counted_model_is_divided_like_a_built_one(count: str) -> None:
    found = parameter_count.model(count)
    assert found.architecture is not None
    built = architectures.model_of("", found.architecture)
    assert built is not None and f"({built.parameters / 1e9:.2f}e9 parameters)" in found.assumed[0]
    for size in ("largest_tensor", "largest_module", "largest_block"):
        assert getattr(found, size) == getattr(built, size)
