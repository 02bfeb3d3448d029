"""Two published configs at three world sizes, the second one with "auto" values."""

from pathlib import Path

import pytest

import dsconfig
from dsconfig.facts import gather
from narrowing import not_none

HERE = Path(__file__).parent
BAICHUAN = HERE.parents[1] / "examples" / "baichuan2.json"
CLASSIFIER = HERE / "configs" / "classifier_auto.json"
ONE_V100, NODE_OF_A100, CLUSTER_OF_H100 = (1, "v100-16gb"), (8, "a100-80gb"), (64, "h100")


def resolved(path, world):
    ranks, device = world
    facts = gather(
        gpus=ranks,
        device=device,
        model="llama-2-13b",
        global_batch=512,
        seq_len=2048,
        learning_rate=1e-4,
        host_memory="1TB",
    )
    return dsconfig.resolve(path, facts)


def triple(resolution):
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return tuple(resolution.config[name] for name in names)


def choices(resolution):
    config = resolution.config
    zero = config["zero_optimization"]
    precision = next((name for name in ("bf16", "fp16") if config.get(name, {}).get("enabled")), "")
    return (
        zero["stage"],
        zero["offload_optimizer"]["device"],
        zero["offload_param"]["device"],
        precision,
    )


@pytest.mark.parametrize(
    ("world", "batch"), [(NODE_OF_A100, (512, 2, 32)), (CLUSTER_OF_H100, (512, 2, 4))]
)
def test_stage_3_fits_two_samples_of_13b(world, batch):
    resolution = resolved(BAICHUAN, world)
    assert resolution.ok
    assert triple(resolution) == batch
    assert resolution.config["bf16"] == {"enabled": True}
    assert "fp16" not in resolution.config


def test_one_v100_does_not_fit_and_gets_suggestion():
    resolution = resolved(BAICHUAN, ONE_V100)
    (found,) = (found for found in resolution.diagnostics if found.code == "DSC252")
    assert found.message.endswith(", the GPU has 15.8 GiB")
    assert "optimizer on cpu and parameters on cpu" in not_none(found.help)
    assert "activation_checkpointing" in not_none(found.help)
    assert resolution.config["fp16"] == {"enabled": True}, "a V100 has no bf16"


@pytest.mark.parametrize(
    ("world", "chosen", "batch"),
    [
        (ONE_V100, (3, "cpu", "cpu", "fp16"), (512, 4, 128)),
        (NODE_OF_A100, (3, "none", "none", "bf16"), (512, 16, 4)),
        (CLUSTER_OF_H100, (1, "none", "none", "bf16"), (512, 8, 1)),
    ],
)
def test_all_auto_depends_on_world_size(world, chosen, batch):
    resolution = resolved(CLASSIFIER, world)
    assert resolution.ok
    assert choices(resolution) == chosen
    assert triple(resolution) == batch
    assert resolution.config["optimizer"]["type"] == "AdamW"
    assert resolution.config["zero_optimization"]["overlap_comm"] is (world[0] > 1)
