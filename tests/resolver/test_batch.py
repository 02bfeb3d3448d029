"""Batch triple: solved for any subset; contradictions suggest the nearest batches."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsconfig
from dsconfig.batch import Contradiction, Triple, solve
from dsconfig.facts import gather
from dsconfig.resolver.resolution import LedgerEntry, Resolution
from dsconfig.runtimes.effective import effective
from narrowing import not_none

GLOBAL, MICRO, STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
A = "auto"


def resolved(config, **flags: Any):
    return dsconfig.resolve(config, gather(**{"gpus": 4, **flags}))


@pytest.mark.parametrize(
    ("written", "triple", "derived"),
    [
        ({GLOBAL: 64, MICRO: 8, STEPS: A}, (64, 8, 2), STEPS),
        ({GLOBAL: 64, MICRO: A, STEPS: 2}, (64, 8, 2), MICRO),
        ({GLOBAL: A, MICRO: 8, STEPS: 2}, (64, 8, 2), GLOBAL),
        ({GLOBAL: 64, MICRO: 8}, (64, 8, 2), STEPS),
        ({GLOBAL: 64, STEPS: 2}, (64, 8, 2), MICRO),
        ({MICRO: 8, STEPS: 2}, (64, 8, 2), GLOBAL),
        ({MICRO: 8}, (32, 8, 1), GLOBAL),
        ({GLOBAL: 64}, (64, 16, 1), MICRO),
    ],
)
def test_missing_batch_members_are_derived(written, triple, derived):
    resolution = resolved(written)
    assert tuple(resolution.config[key] for key in (GLOBAL, MICRO, STEPS)) == triple
    entry = next(entry for entry in resolution.ledger if entry.pointer == f"/{derived}")
    assert entry.source == "derived"
    assert entry.inputs["data_parallel"] == 4


def test_training_arguments_fill_open_members():
    resolution = resolved({GLOBAL: A, MICRO: A, STEPS: A}, micro_batch=8, global_batch=64)
    assert [resolution.config[key] for key in (GLOBAL, MICRO, STEPS)] == [64, 8, 2]
    sources = {entry.pointer: entry.source for entry in resolution.ledger}
    assert sources == {f"/{GLOBAL}": "training", f"/{MICRO}": "training", f"/{STEPS}": "derived"}


def test_batch_uses_data_parallel_size():
    resolution = resolved({MICRO: 2, STEPS: 4}, gpus=8, tensor_parallel=2)
    assert resolution.config[GLOBAL] == 32


def test_ranks_that_autotp_divides_a_model_over_get_the_same_samples():
    config = {GLOBAL: A, MICRO: A, STEPS: A, "zero_optimization": {"stage": 1}}
    config |= {"tensor_parallel": {"autotp_size": 2}}
    arguments = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    facts = gather(gpus=2, training_args=arguments, tensor_parallel=2)
    resolution = dsconfig.resolve(config, facts, runtime="transformers")
    assert resolution.ok
    assert [resolution.config[key] for key in (GLOBAL, MICRO, STEPS)] == [2, 1, 1]


@pytest.mark.parametrize(
    "config",
    [
        {GLOBAL: 100, MICRO: 3, STEPS: 8},
        {GLOBAL: 100, MICRO: 3, STEPS: A},
        {GLOBAL: 100, MICRO: A, STEPS: 8},
        {GLOBAL: 101, MICRO: A, STEPS: A},
    ],
)
def test_contradiction_names_members_and_nearest_batches(config):
    resolution = resolved(config, micro_batch=None)
    (found,) = resolution.refusals
    assert found.code in ("DSC203", "DSC251") and GLOBAL in found.message
    if found.code == "DSC251":
        assert "4 data-parallel ranks" in found.message
        assert "nearest global batch" in not_none(found.help)
    assert resolution.effective is None


def test_nearest_batches_are_divisible():
    (found,) = resolved({GLOBAL: 100, MICRO: 8, STEPS: A}).diagnostics
    assert "96 or 128" in not_none(found.help)
    (found,) = resolved({GLOBAL: 100, MICRO: 3, STEPS: 2}).diagnostics
    assert "set it to 24" in not_none(found.help), "both others are fixed"


@pytest.mark.parametrize("value", ["8", 2.5, True, 0, -4, [8]])
def test_wrong_type_is_reported(value):
    resolution = resolved({GLOBAL: 64, MICRO: value, STEPS: A})
    assert not resolution.ok and resolution.config[STEPS] == A


def test_integral_float_is_an_integer():
    resolution = resolved({GLOBAL: 64.0, MICRO: 8, STEPS: A})
    assert type(resolution.config[GLOBAL]) is int


def test_all_auto_requires_global_batch():
    (found,) = resolved({GLOBAL: A, MICRO: A, STEPS: A}).diagnostics
    assert "global_batch=" in not_none(found.help)


def test_unknown_world_size_requires_gpus_per_key():
    resolution = dsconfig.resolve({GLOBAL: A, MICRO: 2, STEPS: 1}, gather())
    assert ["gpus=" in not_none(found.help) for found in resolution.diagnostics] == [True]


def test_complete_batch_needs_no_world_size():
    assert dsconfig.resolve({MICRO: 2, STEPS: 1}, gather()).ok


def sized_for(memory: str) -> tuple[Resolution, LedgerEntry]:
    """Return the micro batch of GPT-2 XL at stage 0, where a batch of 1 needs 38.3 GiB."""
    config = {GLOBAL: 256, MICRO: A, STEPS: A, "bf16": {"enabled": True}}
    resolution = resolved(config, device_memory=memory, model="gpt2-xl", seq_len=1024)
    return resolution, next(each for each in resolution.ledger if each.pointer == f"/{MICRO}")


def tried_sizes(entry: LedgerEntry) -> dict[int, float]:
    return {int(size): float(gib.split()[0]) for size, gib in entry.inputs["tried"].items()}


def test_largest_micro_batch_that_leaves_memory_is_in_ledger():
    resolution, entry = sized_for("48GB")
    enough = entry.inputs["capacity_bytes"] / 2**30 * 0.95
    tried = tried_sizes(entry)
    assert entry.source == "memory" and not resolution.diagnostics
    assert tried[entry.value] <= enough
    assert min(gib for size, gib in tried.items() if size > entry.value) > enough


def test_tight_micro_batch_needs_no_more_than_the_smallest():
    resolution, entry = sized_for("44GB")
    capacity = entry.inputs["capacity_bytes"] / 2**30
    tried = tried_sizes(entry)
    assert [each.code for each in resolution.diagnostics] == ["DSC155"]
    assert tried[entry.value] == tried[1] < tried[2] < capacity


def test_missing_search_facts_name_flags():
    (found,) = resolved({GLOBAL: 64, MICRO: A, STEPS: A}, model="gpt2").diagnostics
    help_ = not_none(found.help)
    assert "device=" in help_ and "seq_len=" in help_ and "micro_batch=" in help_


NUMBERS = st.none() | st.integers(1, 64)


@given(NUMBERS, NUMBERS, NUMBERS, st.integers(1, 16))
def test_derived_batch_is_consistent_or_contradiction(total, micro, steps, ranks):
    triple = Triple(total, micro, steps)
    solved = solve(triple, ranks)
    if total is None and micro is None:
        assert solved is None
    elif isinstance(solved, Contradiction):
        assert not solved.derived.holds(ranks)
        assert triple.nearest(ranks)
        for size in triple.nearest(ranks):
            assert isinstance(solve(triple._replace(global_batch=size), ranks), Triple)
    else:
        assert solved is not None
        assert solved.global_batch == solved.micro_batch * solved.accumulation * ranks
        assert all(was in (None, now) and now >= 1 for was, now in zip(triple, solved, strict=True))


@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from((1, 2, 4, 8)))
def test_policy_replay_and_rules_agree_on_batch(total, micro, steps, ranks):
    numbers = zip((GLOBAL, MICRO, STEPS), (total, micro, steps), strict=True)
    config = {key: value for key, value in numbers if value is not None}
    facts = gather(gpus=ranks)
    derived = effective(config, facts).batch
    theirs = dsconfig.resolve(config, facts, runtime="deepspeed")
    found = {each.code for each in dsconfig.validate(config, facts).diagnostics}
    assert (derived is not None) == theirs.ok == (not found & {"DSC201", "DSC203"})
    if derived is None:
        assert not dsconfig.resolve(config, facts).ok
        return
    ours = dsconfig.resolve(config, facts)
    for filled in (ours.config, theirs.config):
        triple = (derived.global_batch, derived.micro_batch, derived.accumulation)
        assert tuple(filled[key] for key in (GLOBAL, MICRO, STEPS)) == triple
