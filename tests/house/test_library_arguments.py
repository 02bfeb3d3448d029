"""Invalid arguments to the library raise an error with a suggestion, or give a finding."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import command_line
import dsconfig
from dsconfig.runtimes.deepspeed import deepspeed
from dsconfig.schema.version import Version

CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}


def resolved() -> dsconfig.Resolution:
    return dsconfig.resolve(CONFIG, dsconfig.gather(gpus=8))


@pytest.mark.parametrize("version", [0.19, 19, (0, 19, 8)])
@pytest.mark.parametrize("function", [dsconfig.validate, dsconfig.resolve])
def test_version_must_be_a_string(function: Callable[..., Any], version: Any) -> None:
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
def test_facts_must_be_facts(call: Callable[[Any], Any], facts: Any) -> None:
    with pytest.raises(TypeError, match=r"dsconfig\.gather"):
        call(facts)


@pytest.mark.parametrize("function", ["estimate", "plan"])
@pytest.mark.parametrize("config", [CONFIG, "ds.json", dsconfig.read(CONFIG)], ids=type)
def test_estimate_and_plan_require_a_resolution(function: str, config: Any) -> None:
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
def test_recursive_dict_is_a_finding(config: dict[str, Any]) -> None:
    (found,) = dsconfig.validate(config).diagnostics
    assert found.code == "DSC001" and "or contains itself" in found.message
    answer = dsconfig.resolve(config)
    assert not answer.ok and answer.diagnostics[0].code == "DSC001"


def test_shared_values_are_limited() -> None:
    config: dict[str, Any] = {}
    for _ in range(60):
        config = {"a": config, "b": config}
    (found,) = dsconfig.validate(config).diagnostics
    assert found.code == "DSC001" and "counting shared ones repeatedly" in found.message


def test_deep_dict_is_checked() -> None:
    assert dsconfig.validate(deep(390)).diagnostics[0].code != "DSC001"


def test_unreadable_config_is_not_resolved() -> None:
    answer = dsconfig.resolve("/no/such/ds_config.json")
    assert not answer.ok and answer.diagnostics[0].code == "DSC001"


def test_excessive_number_of_ranks_is_refused() -> None:
    assert dsconfig.gather(gpus=10_000_000).world_size == 10_000_000
    with pytest.raises(ValueError, match="exceeds the limit of 10,000,000"):
        dsconfig.gather(gpus=10_000_001)


@pytest.mark.parametrize("given", ["0.16.4", None])
def test_runtime_version_is_the_default(given: str | None) -> None:
    """fp16 refuses unknown keys from 0.17.1 on; an explicit version overrides the runtime's."""
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


FLAG = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*(?![\w-])")
OPEN = {
    "train_batch_size": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto"},
    "sequence_parallel_size": "auto",
}


@pytest.mark.parametrize("runtime", ["dsengine", "deepspeed", "transformers", "accelerate", None])
def test_findings_name_arguments_and_not_flags(runtime: str | None) -> None:
    found = dsconfig.validate(OPEN, runtime=runtime).diagnostics
    if runtime is not None:
        found += dsconfig.resolve(OPEN, runtime=runtime).diagnostics
    for finding in found:
        text = re.sub(r"`[^`]*`", "", f"{finding.message} {finding.help}")
        assert not FLAG.search(text), finding
    missing = [finding.help or "" for finding in found if finding.code == "DSC150"]
    assert runtime in ("deepspeed", None) or any("gpus=" in help for help in missing)


def test_command_line_names_flags_and_not_arguments(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(OPEN))
    done = command_line.run("resolve", "ds.json", "--runtime", "dsengine", cwd=tmp_path)
    assert "specify --gpus" in done.stdout and "gpus=" not in done.stdout


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dsconfig.validate(CONFIG, runtime="x"), "runtime='x' is not one of dsengine, "),
        (lambda: dsconfig.resolve(CONFIG, runtime="x"), "runtime='x' is not one of dsengine, "),
        (lambda: dsconfig.validate(CONFIG, version="9"), "version='9' is not a DeepSpeed version"),
        (lambda: dsconfig.diff(CONFIG, from_version="9"), "from_version='9' is not a DeepSpeed"),
    ],
)
def test_error_names_the_argument(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
