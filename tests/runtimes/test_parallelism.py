"""accelerate's ParallelismConfig, as its YAML sets it."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dsconfig
from dsconfig.facts import distributed_config, embedded_facts, parallelism
from narrowing import not_none

YAML = """distributed_type: DEEPSPEED
num_processes: 4
deepspeed_config:
  zero_stage: 3
parallelism_config:
  parallelism_config_dp_shard_size: 2
  parallelism_config_sp_size: 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "accelerate.yaml"
    path.write_text(text)
    return path


def test_sequence_parallel_size_becomes_a_fact(tmp_path: Path) -> None:
    document = dsconfig.read(written(tmp_path, YAML))
    facts = embedded_facts.complete(dsconfig.gather(micro_batch=1), document)
    assert (facts.world_size, facts.degrees.sequence, facts.data_parallel) == (4, 2, 2)
    found = dsconfig.resolve(document, facts, runtime="accelerate")
    assert found.ok and found.config["train_batch_size"] == 2
    assert not dsconfig.validate(document, runtime="accelerate").errors


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("shard_size: 2", "shard_size: 4", 6),
        ("sp_size: 2", "sp_size: 0", 7),
        ("sp_size: 2", "sp_sise: 2", 7),
        ("sp_size: 2", "cp_backend: ring", 7),
        ("sp_size: 2", "tp_size: 4", 5),
    ],
)
def test_launch_error_is_reported_at_its_line(
    before: str, after: str, line: int, tmp_path: Path
) -> None:
    report = dsconfig.validate(written(tmp_path, YAML.replace(before, after)), runtime="accelerate")
    findings = [not_none(each.range).start.line for each in report.errors if each.code == "DSC708"]
    assert line in findings, report.diagnostics


def test_setting_without_prefix_suggests_the_full_name(tmp_path: Path) -> None:
    text = YAML.replace("parallelism_config_sp_size", "sp_size")
    report = dsconfig.validate(written(tmp_path, text), runtime="accelerate")
    assert 'did you mean "parallelism_config_sp_size"?' in [each.help for each in report.errors]


@pytest.mark.parametrize(
    ("processes", "sequence", "replicate"), [(8, 2, 2), (8, 3, 1), (4, 99, 1), (8, 2, 3), (6, 2, 1)]
)
def test_suggested_size_is_accepted(processes: int, sequence: int, replicate: int) -> None:
    sizes = {"sp_size": sequence, "dp_replicate_size": replicate, "dp_shard_size": 7}
    block = {parallelism.yaml_name(name): size for name, size in sizes.items()}
    (found,) = parallelism.violations({parallelism.BLOCK: block}, processes)
    if found.setting == "sp_size":
        assert processes % sequence
        return
    advised = int(found.help.removeprefix("write ").partition(",")[0])
    block[parallelism.yaml_name("dp_shard_size")] = advised
    if "dp_replicate_size 1" in found.help:
        block[parallelism.yaml_name("dp_replicate_size")] = 1
    assert not list(parallelism.violations({parallelism.BLOCK: block}, processes))


@pytest.mark.live
def test_violations_match_real_parallelism_config() -> None:
    module = pytest.importorskip("accelerate.parallelism_config")
    pick = random.Random(5)
    for _ in range(400):
        sizes = {name: pick.choice((1, 1, 2, 4, 0)) for name in parallelism.SIZES}
        processes = pick.choice((2, 4, 8))
        launch = {"parallelism_config": {parallelism.yaml_name(k): v for k, v in sizes.items()}}
        ours = [each.message for each in parallelism.violations(launch, processes)]
        assert bool(ours) == stops(module, sizes, processes), (sizes, processes, ours)


def stops(module: Any, sizes: dict[str, int], processes: int) -> bool:
    """Return whether ParallelismConfig or DeepSpeed raises for these sizes."""
    accelerator = SimpleNamespace(
        multi_device=True,
        num_processes=processes,
        is_fsdp2=False,
        is_main_process=False,
        distributed_type=module.DistributedType.DEEPSPEED,
    )
    try:
        config = module.ParallelismConfig(**sizes)
        config._validate_accelerator(accelerator)
    except ValueError:
        return True
    if config.sp_size == 1:
        return False
    return config.data_parallel_size * config.sp_size != processes


CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "zero_optimization": {"stage": 2},
}
ARGUMENTS = """output_dir: out
model_init_kwargs:
  distributed_config:
    tp_sise: 2
    fsdp_size: 3
"""


def test_distributed_config_findings_have_lines(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text(ARGUMENTS)
    facts = dsconfig.gather(gpus=4, training_args=path)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").errors
    places = {each.range.start.line: each.effect for each in found if each.range}
    assert places == {4: "altered", 5: "refused"}, found
    assert {each.file for each in found} == {str(path)}
    stops = dsconfig.resolve(CONFIG, facts, runtime="transformers").refusals
    assert [each.range.start.line for each in stops if each.range] == [5]


@pytest.mark.parametrize("block", [{}, {"tp_size": 1}, {"ep_implementation": "all_reduce"}])
def test_distributed_config_without_sharding_has_no_finding(block: dict[str, Any]) -> None:
    given = {"model_init_kwargs": {"distributed_config": block}}
    facts = dsconfig.gather(gpus=4, training_args=given)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    assert "DSC709" not in {each.code for each in found}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({1: 2}, "distributed_config.1"),
        ({"tp_size": 3}, "tp_size is 3, but there are 4 processes"),
        ({"tp_size": 3, "pp_size": 2}, "tp_size x pp_size multiply to 6, but"),
        ({"tp_size": 1.0}, "tp_size is 1.0; it must be a positive integer"),
    ],
)
def test_distributed_config_messages(block: dict[Any, Any], message: str) -> None:
    facts = dsconfig.gather(gpus=4, training_args={"distributed_config": block})
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").errors
    assert any(each.code == "DSC709" and message in each.message for each in found), found


def test_sharded_model_stops_deepspeed_at_initialization() -> None:
    given = {"model_init_kwargs": {"distributed_config": {"tp_plan": "auto"}}}
    facts = dsconfig.gather(gpus=2, training_args=given)
    (found,) = dsconfig.validate(CONFIG, facts, runtime="transformers").errors
    assert found.code == "DSC709" and found.effect == "refused" and found.late


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_violations_match_real_distributed_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import fields

    real = pytest.importorskip("transformers.distributed").DistributedConfig
    assert {field.name for field in fields(real)} == distributed_config.KNOWN
    pick = random.Random(7)
    for _ in range(600):
        block: dict[str, Any] = {
            name: pick.choice((None, 1, 1, 2, 4, 0)) for name in distributed_config.SIZES
        }
        block["tp_plan"] = pick.choice((None, None, "auto"))
        block["enable_expert_parallel"] = pick.random() < 0.2
        processes = pick.choice((2, 4, 8))
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        ours = [each.message for each in distributed_config.violations(block, processes)]
        assert bool(ours) == _stops(real, block, processes), (block, processes, ours)


def _stops(real: Any, block: dict[str, Any], processes: int) -> bool:
    """Return whether the class raises, or the mesh for this number of processes."""
    try:
        made = real(**block)
    except ValueError:
        return True
    together = made.tp_size * made.dp_size * made.pp_size
    return together not in (1, processes)
