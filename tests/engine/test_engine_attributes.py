"""Every attribute of DeepSpeed's engine is provided, or refused with what to use instead."""

from typing import Any

import pytest

from dsconfig.features.deepspeed_names import ATTRIBUTES
from dsengine import DeepSpeedEngine
from dsengine.loop.deepspeed_attributes import GETTERS
from tests import deepspeed_surface
from training.jobs import config
from training.ranks import Ranks

NAMES = deepspeed_surface.recorded().engine


@pytest.mark.engine
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_every_attribute_is_provided_or_explained(ranks: Ranks, stage: int) -> None:
    arguments: dict[str, Any] = {"settings": config(stage), "names": NAMES}
    for missing in ranks.run("training.attribute_jobs:messages", **arguments):
        expected = "dsengine does not implement deepspeed.DeepSpeedEngine.{}: {}"
        assert missing == {name: expected.format(name, ATTRIBUTES[name]) for name in missing}
        assert len(missing) < len(NAMES) / 3


@pytest.mark.engine
def test_refused_attributes_cannot_be_set_and_the_models_are_found(ranks: Ranks) -> None:
    for found in ranks.run("training.attribute_jobs:set_and_read", settings=config(1)):
        assert "enable_backward_allreduce: use no_sync()" in found["refused"]
        assert found["of_model"] == ("of the model", True) and found["absent"] == []
        assert found["names"] == ["linear.weight", "linear.bias"]


def test_attributes_are_refused_on_the_class() -> None:
    """Programs that patch the engine read the original first."""
    with pytest.raises(AttributeError, match="set the block optimizer"):
        getattr(DeepSpeedEngine, "_configure_basic_optimizer")  # noqa: B009


def test_attributes_that_exist_are_found_without_a_hook() -> None:
    assert DeepSpeedEngine.__getattribute__ is object.__getattribute__


def test_tables_have_only_names_of_deepspeed() -> None:
    public = {name for name in (*GETTERS, *ATTRIBUTES) if not name.startswith("_")}
    assert public <= set(NAMES)
    assert not GETTERS.keys() & ATTRIBUTES.keys()


ADAM = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
CONFIGS: dict[str, dict[str, Any]] = {
    "stage 0": {"prescale_gradients": True, "gradient_predivide_factor": 2.0},
    "stage 2, bf16": {
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "dataloader_drop_last": True,
        "checkpoint": {"tag_validation": "Fail", "use_node_local_storage": True},
        "flops_profiler": {"enabled": False, "profile_step": 7, "top_modules": 3},
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": 1000,
            "allgather_bucket_size": 2000,
            "round_robin_gradients": True,
            "ignore_unused_parameters": False,
            "overlap_comm": False,
        },
    },
    "stage 3, fp32": {
        "steps_per_print": 5,
        "wall_clock_breakdown": False,
        "aio": {"block_size": 4096, "queue_depth": 4},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "fp16": {"enabled": False, "initial_scale_power": 8, "hysteresis": 3},
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 3,
            "stage3_max_live_parameters": 1000,
            "stage3_prefetch_bucket_size": 100,
            "stage3_param_persistence_threshold": 10,
            "stage3_gather_16bit_weights_on_model_save": True,
            "sub_group_size": 5000,
            "offload_optimizer": {"device": "cpu"},
        },
    },
}


FAILING = {"compile_autosp", "compile_autotp", "compile_zero_optimization_stage"}
"""DeepSpeed's getters that fail if the config does not set the key."""


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize("name", CONFIGS)
def test_values_equal_those_of_deepspeed(ranks: Ranks, deepspeed: Ranks, name: str) -> None:
    settings = {"train_micro_batch_size_per_gpu": 4, "optimizer": ADAM} | CONFIGS[name]
    ours, theirs = (
        runner.run("training.attribute_jobs:values", settings=settings, real=runner is deepspeed)
        for runner in (ranks, deepspeed)
    )
    for own, original in zip(ours, theirs, strict=True):
        valid = {key: value for key, value in original.items() if not isinstance(value, Exception)}
        different = {key for key in valid if own[key] != valid[key]}
        for key in sorted(different):
            print("DIFF", key, own[key], "|", valid[key])
        assert {key: (own[key], valid[key]) for key in different} == {}
        assert original.keys() - valid.keys() <= FAILING and own.keys() == original.keys()
