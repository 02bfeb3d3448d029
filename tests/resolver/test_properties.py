"""Properties that hold for all configs and facts."""

from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dsconfig
from dsconfig import Resolution
from dsconfig.facts import Facts, gather
from dsconfig.resolver.draft import auto_paths
from property_settings import without_health_checks
from resolver.strategies import AUTO, configs, worlds

Config = dict[str, Any]
TRIPLE = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if isinstance(value, dict):
        found: dict[tuple[str, ...], Any] = {}
        for key, child in value.items():
            found |= leaves(child, (*path, key))
        return found
    return {path: value}


def unresolved_auto_is_reported(config: Config, facts: Facts, found: Resolution) -> None:
    if list(auto_paths(found.config)):
        assert not found.ok
    assert (found.effective is not None) == (not found.refusals)


def resolving_is_idempotent(config: Config, facts: Facts, found: Resolution) -> None:
    if found.ok:
        second = dsconfig.resolve(found.config, facts)
        assert second.config == found.config
        assert second.ledger == ()


def resolved_config_is_valid(config: Config, facts: Facts, found: Resolution) -> None:
    if found.ok:
        report = dsconfig.validate(found.config, facts, runtime="dsengine")
        assert report.ok, [f"{error.code} {error.message}" for error in report.errors]


def explicit_values_and_key_order_are_kept(config: Config, facts: Facts, found: Resolution) -> None:
    before, after = leaves(config), leaves(found.config)
    for path, value in before.items():
        if value != AUTO:
            assert after[path] == value and type(after[path]) is type(value)
    assert [key for key in found.config if key in config] == list(config)


def every_filled_value_is_in_ledger(config: Config, facts: Facts, found: Resolution) -> None:
    before, after = leaves(config), leaves(found.config)
    filled = {path for path in after if after[path] not in (AUTO, before.get(path))}
    changed = {"/" + "/".join(path) for path in filled}
    entries = {entry.pointer: entry for entry in found.ledger}
    assert changed <= entries.keys()
    assert all(entry.rule and entry.source for entry in entries.values())


def batch_triple_is_consistent(config: Config, facts: Facts, found: Resolution) -> None:
    if found.ok:
        total, micro, steps = (found.config[key] for key in TRIPLE)
        assert all(type(member) is int for member in (total, micro, steps))
        assert total == micro * steps * facts.data_parallel


def sizes_are_integers(config: Config, facts: Facts, found: Resolution) -> None:
    for path, value in leaves(found.config).items():
        if path[-1].endswith(("_size", "_threshold", "_parameters")) and value != AUTO:
            assert type(value) is int, path


def key_order_does_not_matter(config: Config, facts: Facts, found: Resolution) -> None:
    keys = list(config)
    Random(len(str(config))).shuffle(keys)
    shuffled = {key: config[key] for key in keys}
    assert dsconfig.resolve(shuffled, facts).config == found.config


PROPERTIES = (
    unresolved_auto_is_reported,
    resolving_is_idempotent,
    resolved_config_is_valid,
    explicit_values_and_key_order_are_kept,
    every_filled_value_is_in_ledger,
    batch_triple_is_consistent,
    sizes_are_integers,
    key_order_does_not_matter,
)


def check_properties(examples: int) -> int:
    """Check every property of random configs; return how many of these resolve."""
    resolved = 0

    @without_health_checks(examples)
    @given(configs(), worlds())
    def check(config: Config, world: dict[str, Any]) -> None:
        nonlocal resolved
        facts = gather(**world)
        found = dsconfig.resolve(config, facts)
        resolved += found.ok
        for has_property in PROPERTIES:
            has_property(config, facts, found)

    check()
    return resolved


def test_resolutions_have_every_property() -> None:
    assert check_properties(100) >= 30, "most of the properties are those of resolved configs"


@pytest.mark.deep
def test_resolutions_of_more_configs_have_every_property() -> None:
    check_properties(1500)


GROWING = given(
    st.sampled_from(["gpt2-xl", "llama-3.2-1b", "llama-2-7b"]),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([1, 8]),
    st.lists(st.integers(8, 192), min_size=2, max_size=4, unique=True),
)


@settings(max_examples=6)
@GROWING
@example("llama-2-7b", 1, 1, [134, 135, 162, 172])
def test_micro_batch_grows_with_memory(
    model: str, stage: int, ranks: int, gigabytes: list[int]
) -> None:
    check_growth(model, stage, ranks, gigabytes)


@pytest.mark.deep
@settings(max_examples=200)
@GROWING
def test_micro_batch_grows_with_memory_in_more_cases(
    model: str, stage: int, ranks: int, gigabytes: list[int]
) -> None:
    check_growth(model, stage, ranks, gigabytes)


def check_growth(model: str, stage: int, ranks: int, gigabytes: list[int]) -> None:
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
def test_any_world_size_resolves(ranks: int) -> None:
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


UNUSUAL = given(
    configs(),
    st.dictionaries(st.sampled_from(BLOCKS), st.sampled_from(ODD_BLOCKS), min_size=1, max_size=3),
    st.sampled_from(["dsengine", "deepspeed", "transformers", "accelerate"]),
)


@settings(max_examples=100)
@UNUSUAL
def test_unusual_configs_do_not_crash(config: Config, odd: Config, runtime: str) -> None:
    check_unusual(config, odd, runtime)


@pytest.mark.deep
@settings(max_examples=3000)
@UNUSUAL
def test_more_unusual_configs_do_not_crash(config: Config, odd: Config, runtime: str) -> None:
    check_unusual(config, odd, runtime)


def check_unusual(config: Config, odd: Config, runtime: str) -> None:
    facts = gather(gpus=8, device="a100-80gb", model="gpt2", seq_len=128)
    resolution = dsconfig.resolve({**config, **odd}, facts, runtime=runtime)
    assert resolution.effective is None or not resolution.refusals
