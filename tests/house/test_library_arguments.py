"""Wrong arguments to the library: an error that names the remedy, or a diagnostic."""

from collections.abc import Callable
from typing import Any

import pytest

import dsconfig
from dsconfig.runtimes.deepspeed import deepspeed
from dsconfig.schema.version import Version

CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}


def resolved() -> dsconfig.Resolution:
    return dsconfig.resolve(CONFIG, dsconfig.gather(gpus=8))


@pytest.mark.parametrize("version", [0.19, 19, (0, 19, 8)])
@pytest.mark.parametrize("function", [dsconfig.validate, dsconfig.resolve])
def test_a_version_is_text(function: Callable[..., Any], version: Any) -> None:
    with pytest.raises(ValueError, match=r'write one like "0\.19\.8"'):
        function(CONFIG, version=version)


@pytest.mark.parametrize(
    "call",
    [
        lambda facts: dsconfig.validate(CONFIG, facts),
        lambda facts: dsconfig.resolve(CONFIG, facts),
        lambda facts: dsconfig.estimate(resolved(), facts),
        lambda facts: dsconfig.plan(resolved(), facts),
    ],
    ids=["validate", "resolve", "estimate", "plan"],
)
@pytest.mark.parametrize("facts", [{"world_size": 8}, 8])
def test_facts_are_gathered(call: Callable[[Any], Any], facts: Any) -> None:
    with pytest.raises(TypeError, match=r"dsconfig\.gather"):
        call(facts)


@pytest.mark.parametrize("function", ["estimate", "plan"])
@pytest.mark.parametrize("config", [CONFIG, "ds.json", dsconfig.read(CONFIG)], ids=type)
def test_what_prices_or_plans_takes_a_resolved_config(function: str, config: Any) -> None:
    with pytest.raises(TypeError, match=rf"dsconfig\.{function}\(dsconfig\.resolve\(config"):
        getattr(dsconfig, function)(config, dsconfig.gather(gpus=8))


def deep(levels: int) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for _ in range(levels):
        config = {"a": config}
    return config


def in_itself(kind: type) -> dict[str, Any]:
    config: dict[str, Any] = {"train_batch_size": 8}
    config["a"] = config if kind is dict else [config["train_batch_size"], config]
    return config


@pytest.mark.parametrize(
    "config",
    [deep(2000), in_itself(dict), in_itself(list)],
    ids=["2,000 levels", "in itself", "in a list in itself"],
)
def test_a_dict_without_end_is_a_finding(config: dict[str, Any]) -> None:
    (found,) = dsconfig.validate(config).diagnostics
    assert found.code == "DSC001" and "or contains itself" in found.message
    answer = dsconfig.resolve(config)
    assert not answer.ok and answer.diagnostics[0].code == "DSC001"


def test_parts_that_are_shared_are_not_walked_again_and_again() -> None:
    config: dict[str, Any] = {}
    for _ in range(60):
        config = {"a": config, "b": config}
    (found,) = dsconfig.validate(config).diagnostics
    assert found.code == "DSC001" and "counting shared ones repeatedly" in found.message


def test_a_deep_dict_is_judged() -> None:
    assert dsconfig.validate(deep(390)).diagnostics[0].code != "DSC001"


def test_what_cannot_be_read_is_not_resolved() -> None:
    answer = dsconfig.resolve("/no/such/ds_config.json")
    assert not answer.ok and answer.diagnostics[0].code == "DSC001"


def test_more_ranks_than_any_machine_has_are_refused() -> None:
    assert dsconfig.gather(gpus=10_000_000).world_size == 10_000_000
    with pytest.raises(ValueError, match="exceeds the limit of 10,000,000"):
        dsconfig.gather(gpus=10_000_001)


@pytest.mark.parametrize("given", ["0.16.4", None])
def test_a_runtime_is_judged_at_its_own_release(given: str | None) -> None:
    """fp16 refuses unknown keys from 0.17.1 on; an explicit version has the last word."""
    program = deepspeed(Version.parse(given)) if given else deepspeed()
    config = {"train_batch_size": 8, "fp16": {"enabled": True, "nothing": 1}}
    facts = dsconfig.Facts(world_size=1)
    for version in (None, "0.16.4", "0.19.8"):
        judged = Version.parse(version) if version else program.version
        refuses = judged >= Version(0, 17, 1)
        report = dsconfig.validate(config, facts, runtime=program, version=version)
        resolution = dsconfig.resolve(config, facts, runtime=program, version=version)
        for found in (report.diagnostics, resolution.diagnostics):
            assert any(each.effect is dsconfig.Effect.REFUSED for each in found) == refuses
        assert resolution.version == judged
