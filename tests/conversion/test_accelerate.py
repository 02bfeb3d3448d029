"""accelerate's YAML for FSDP2, read by accelerate itself, and the way back."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import run
from conversion import corpus
from dsconfig import Facts
from dsconfig.conversion import accelerate_fsdp2, from_accelerate
from dsconfig.runtimes.effective import effective

BASE: dict[str, Any] = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}}


def converted(gpus: int = 8, **zero: Any) -> dict[str, Any]:
    config = {**BASE, "zero_optimization": {"stage": 3, **zero}}
    return yaml.safe_load(
        accelerate_fsdp2.yaml_text(effective(config, Facts(world_size=gpus)), gpus, 1)
    )


def test_hybrid_sharding_has_a_parallelism_config() -> None:
    block = converted(mics_shard_size=4)["parallelism_config"]
    assert block["parallelism_config_dp_replicate_size"] == 2
    assert block["parallelism_config_dp_shard_size"] == 4
    assert "parallelism_config" not in converted()


def test_stage_0_is_data_parallel() -> None:
    launch = converted(stage=0)
    assert launch["distributed_type"] == "MULTI_GPU" and "fsdp_config" not in launch


@pytest.mark.parametrize(
    "zero",
    [
        {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
        {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        {"stage": 3, "mics_shard_size": 4},
    ],
    ids=["stage 3", "offload", "mics"],
)
def test_conversion_and_back_keeps_zero(zero: dict[str, Any]) -> None:
    back = from_accelerate.converted(converted(**zero)).config
    assert back["zero_optimization"] == zero
    assert back["bf16"] == {"enabled": True}


FSDP1 = """
distributed_type: FSDP
num_processes: 8
mixed_precision: fp16
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_offload_params: false
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_use_orig_params: true
  fsdp_activation_checkpointing: true
dynamo_config:
  dynamo_backend: INDUCTOR
"""


def test_settings_without_a_key_are_listed(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(FSDP1)
    done = run("convert", "fsdp.yaml", "--to", "json", cwd=tmp_path)
    config = json.loads(done.stdout)
    assert config["zero_optimization"] == {"stage": 2} and config["fp16"] == {"enabled": True}
    listed = done.stderr.splitlines()
    assert [line.split(" = ")[0].removeprefix("not converted: ") for line in listed] == [
        "fsdp_use_orig_params",
        "fsdp_activation_checkpointing",
        "dynamo_config",
    ]
    assert "(gradient_checkpointing=True in the script)" in listed[1]
    (tmp_path / "ds.json").write_text(done.stdout)
    assert run("validate", "ds.json", "--runtime", "accelerate", cwd=tmp_path).returncode == 0


def test_an_unknown_strategy_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(FSDP1.replace("SHARD_GRAD_OP", "SOME"))
    done = run("convert", "fsdp.yaml", "--to", "json", cwd=tmp_path)
    assert done.returncode == 2 and "fsdp_sharding_strategy is SOME" in done.stderr


def launched(file: Path) -> Any:
    """Return the arguments of ``accelerate launch`` with a YAML, as its own code fills them in."""
    launch = pytest.importorskip("accelerate.commands.launch")
    parser = launch.launch_command_parser()
    args = parser.parse_args(["--config_file", str(file), "train.py"])
    args, *_ = launch._validate_launch_command(args)
    return args


@pytest.mark.live
def test_accelerate_reads_every_yaml_of_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils = pytest.importorskip("accelerate.utils")
    launch_utils = pytest.importorskip("accelerate.utils.launch")
    file = tmp_path / "fsdp.yaml"
    count = 0
    for _, settings, facts in corpus.resolved():
        gpus = facts.world_size or 1
        text = accelerate_fsdp2.yaml_text(settings, gpus, 1)
        file.write_text(text)
        args = launched(file)
        assert args.num_processes == gpus
        if settings.zero.stage == 0:
            continue
        assert args.use_fsdp
        environment = launch_utils.prepare_multi_gpu_env(args)
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            plugin = utils.FullyShardedDataParallelPlugin()
        assert plugin.fsdp_version == 2
        assert plugin.reshard_after_forward is (settings.zero.stage == 3)
        count += 1
    assert count > 50


@pytest.mark.live
def test_accelerate_builds_the_parallel_degrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerate = pytest.importorskip("accelerate")
    launch_utils = pytest.importorskip("accelerate.utils.launch")
    file = tmp_path / "fsdp.yaml"
    file.write_text(yaml.safe_dump(converted(mics_shard_size=4)))
    for name, value in launch_utils.prepare_multi_gpu_env(launched(file)).items():
        monkeypatch.setenv(name, value)
    degrees = accelerate.parallelism_config.ParallelismConfig()
    assert (degrees.dp_replicate_size, degrees.dp_shard_size, degrees.tp_size) == (2, 4, 1)
    assert degrees.total_size == 8
