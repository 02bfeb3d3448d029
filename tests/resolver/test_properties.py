"""Properties that hold for all configs and facts."""

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import dsconfig
from dsconfig.facts import Facts, gather
from dsconfig.resolver.draft import auto_paths
from resolver.strategies import AUTO, configs, worlds

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TRIPLE = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if isinstance(value, dict):
        found: dict[tuple[str, ...], Any] = {}
        for key, child in value.items():
            found |= leaves(child, (*path, key))
        return found
    return {path: value}


@FEW
@given(configs(), worlds())
def test_unresolved_auto_is_reported(config, world):
    facts = gather(**world)
    resolution = dsconfig.resolve(config, facts)
    if list(auto_paths(resolution.config)):
        assert not resolution.ok
    assert (resolution.effective is not None) == resolution.ok


@FEW
@given(configs(), worlds())
def test_resolving_is_idempotent(config, world):
    facts = gather(**world)
    first = dsconfig.resolve(config, facts)
    assume(first.ok)
    second = dsconfig.resolve(first.config, facts)
    assert second.config == first.config
    assert second.ledger == ()


@FEW
@given(configs(), worlds())
def test_resolved_config_is_valid(config, world):
    facts = gather(**world)
    first = dsconfig.resolve(config, facts)
    assume(first.ok)
    report = dsconfig.validate(first.config, facts, runtime="dsengine")
    assert report.ok, [f"{found.code} {found.message}" for found in report.errors]


@FEW
@given(configs(), worlds())
def test_explicit_values_and_key_order_are_kept(config, world):
    facts = gather(**world)
    resolution = dsconfig.resolve(config, facts)
    before, after = leaves(config), leaves(resolution.config)
    for path, value in before.items():
        if value != AUTO:
            assert after[path] == value and type(after[path]) is type(value)
    kept = [key for key in resolution.config if key in config]
    assert kept == list(config)


@FEW
@given(configs(), worlds())
def test_every_filled_value_is_in_ledger(config, world):
    facts = gather(**world)
    resolution = dsconfig.resolve(config, facts)
    before, after = leaves(config), leaves(resolution.config)
    filled = {path for path in after if after[path] not in (AUTO, before.get(path))}
    changed = {"/" + "/".join(path) for path in filled}
    entries = {entry.pointer: entry for entry in resolution.ledger}
    assert changed <= entries.keys()
    assert all(entry.rule and entry.source for entry in entries.values())


@FEW
@given(configs(), worlds())
def test_batch_triple_is_consistent(config, world):
    facts = gather(**world)
    resolution = dsconfig.resolve(config, facts)
    assume(resolution.ok)
    total, micro, steps = (resolution.config[key] for key in TRIPLE)
    assert all(type(member) is int for member in (total, micro, steps))
    assert total == micro * steps * facts.data_parallel


@FEW
@given(configs(), worlds())
def test_sizes_are_integers(config, world):
    facts = gather(**world)
    resolution = dsconfig.resolve(config, facts)
    for path, value in leaves(resolution.config).items():
        if path[-1].endswith(("_size", "_threshold", "_parameters")) and value != AUTO:
            assert type(value) is int, path


@FEW
@given(configs(), worlds(), st.randoms())
def test_key_order_does_not_matter(config, world, random):
    facts = gather(**world)
    keys = list(config)
    random.shuffle(keys)
    shuffled = {key: config[key] for key in keys}
    assert dsconfig.resolve(config, facts).config == dsconfig.resolve(shuffled, facts).config


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["gpt2-xl", "llama-3.2-1b", "llama-2-7b"]),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([1, 8]),
    st.lists(st.integers(8, 192), min_size=2, max_size=4, unique=True),
)
@example("llama-2-7b", 1, 1, [134, 135, 162, 172])
def test_micro_batch_grows_with_memory(model, stage, ranks, gigabytes):
    config = {
        "train_batch_size": 64 * ranks,
        "train_micro_batch_size_per_gpu": AUTO,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 50_000_000},
    }
    found: list[int] = []
    for memory in sorted(gigabytes):
        facts = gather(gpus=ranks, model=model, device_memory=f"{memory}GB", seq_len=512)
        resolution = dsconfig.resolve(config, facts)
        found.append(resolution.config[TRIPLE[1]] if resolution.ok else 0)
    assert found == sorted(found)


@pytest.mark.parametrize("ranks", [1, 8, 1024, 65_536])
def test_any_world_size_resolves(ranks):
    facts = Facts(world_size=ranks, training=dsconfig.TrainingFacts(micro_batch_size=2))
    config = {TRIPLE[0]: ranks * 4, TRIPLE[1]: AUTO, TRIPLE[2]: AUTO}
    assert dsconfig.resolve(config, facts).config == dict(
        zip(TRIPLE, (ranks * 4, 2, 2), strict=True)
    )


ODD_BLOCKS = (None, True, 3, 1.5, "auto", "x", [], {}, [1], float("nan"))
BLOCKS = (
    *("zero_optimization", "optimizer", "scheduler", "fp16", "bf16", "activation_checkpointing"),
    *("data_types", "flops_profiler", "tensorboard", "unheard_of"),
)


@settings(max_examples=150, deadline=None)
@given(
    configs(),
    st.dictionaries(st.sampled_from(BLOCKS), st.sampled_from(ODD_BLOCKS), min_size=1, max_size=3),
    st.sampled_from(["dsengine", "deepspeed", "transformers", "accelerate"]),
)
def test_unusual_configs_do_not_crash(config, odd, runtime):
    facts = gather(gpus=8, device="a100-80gb", model="gpt2", seq_len=128)
    resolution = dsconfig.resolve({**config, **odd}, facts, runtime=runtime)
    assert resolution.effective is None or resolution.ok
