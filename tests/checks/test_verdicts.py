"""Verdicts that the examples of the rules do not cover."""

import json
import math
from typing import Any

import pytest

import dsconfig
from dsconfig.batch import MICRO, STEPS
from dsconfig.facts import gather
from narrowing import not_none

ADAM = {"type": "AdamW", "params": {"lr": 1e-3}}
CPU = {"device": "cpu"}


def zero(stage, **keys):
    return {"zero_optimization": {"stage": stage, **keys}}


def zenflow(**keys):
    return zero(2, offload_optimizer=CPU, overlap_comm=True, zenflow=keys)


def sampling(**parts):
    return {"data_efficiency": {"enabled": True, "data_sampling": {"enabled": True, **parts}}}


def curriculum(**metric):
    block = {"enabled": True, "curriculum_metrics": {"seqlen": metric}}
    return sampling(curriculum_learning=block)


def experts(**keys):
    return {"expert_parallel": {"enabled": True, **keys}}


FOUND = [
    (zero(0, zenflow={}), "DSC451", "/zero_optimization/zenflow"),
    (zero(3, zenflow={}), "DSC451", "/zero_optimization/zenflow"),
    (zenflow(select_strategy="daily"), "DSC452", "/zero_optimization/zenflow/select_strategy"),
    (zenflow(select_interval="often"), "DSC452", "/zero_optimization/zenflow/select_interval"),
    (zenflow(update_interval=0), "DSC452", "/zero_optimization/zenflow/update_interval"),
    (zenflow(select_strategy="step"), "DSC452", "/zero_optimization/zenflow/select_strategy"),
    (
        zenflow(select_strategy="step", select_interval=2, update_interval=4),
        "DSC452",
        "/zero_optimization/zenflow/select_interval",
    ),
    ({"sequence_parallel_size": 4, "data_parallel_size": 4}, "DSC461", "/sequence_parallel_size"),
    ({"sequence_parallel_size": 3}, "DSC461", "/sequence_parallel_size"),
    ({"tensor_parallel": {"autotp_size": -2}}, "DSC462", "/tensor_parallel/autotp_size"),
    (
        {"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 4}}},
        "DSC462",
        "/tensor_parallel/tp/tp_size",
    ),
    (
        {
            "tensor_parallel": {
                "autotp_size": 2,
                "partition_config": {"layer_specs": [{"shape": [2, -1], "partition_dim": 5}]},
            }
        },
        "DSC464",
        "/tensor_parallel/partition_config/layer_specs/0/partition_dim",
    ),
    (experts(autoep_size=3), "DSC465", "/expert_parallel/autoep_size"),
    (experts(comm_backend="nccl"), "DSC465", "/expert_parallel/comm_backend"),
    (
        experts(autoep_size=2) | zero(3, zero_quantized_gradients=True),
        "DSC465",
        "/zero_optimization/zero_quantized_gradients",
    ),
    (
        zero(2, offload_optimizer=CPU) | {"compile": {"offload_opt_states": True}},
        "DSC471",
        "/compile/offload_opt_states",
    ),
    ({"compile": {"passes": ["autotp"]}}, "DSC473", "/compile/passes"),
    (zero(2) | {"compile": {"passes": ["autosp"]}}, "DSC473", "/compile/passes"),
    (
        curriculum(
            min_difficulty=1,
            max_difficulty=9,
            schedule_type="fixed_discrete",
            schedule_config={"difficulty": [1, 2, 3], "max_step": [5]},
        ),
        "DSC916",
        "/data_efficiency/data_sampling/curriculum_learning/curriculum_metrics/seqlen"
        "/schedule_config/max_step",
    ),
    (
        sampling(dynamic_batching={"enabled": True, "max_tokens": "many"}),
        "DSC913",
        "/data_efficiency/data_sampling/dynamic_batching/max_tokens",
    ),
    (
        {
            "data_efficiency": {
                "enabled": True,
                "data_routing": {
                    "enabled": True,
                    "random_ltd": {
                        "enabled": True,
                        "total_layer_num": 2,
                        "random_ltd_layer_num": 1,
                        "random_ltd_schedule": {},
                        "layer_token_lr_schedule": {"enabled": True},
                    },
                },
            }
        },
        "DSC915",
        "/data_efficiency/data_routing/random_ltd/layer_token_lr_schedule/enabled",
    ),
    (
        zero(3, zero_hpz_partition_size=16),
        "DSC419",
        "/zero_optimization/zero_hpz_partition_size",
    ),
    ({"scheduler": {"type": "WarmupLR"}}, "DSC634", "/scheduler/params"),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": "auto"}}},
        "DSC633",
        "/scheduler/params/total_num_steps",
    ),
    ({"bf16": {"enabled": True}, "fp16": {"auto_cast": True}}, "DSC311", "/fp16/auto_cast"),
    ({"optimizer": {"type": "Lion", "params": {"eps": 1e-8}}}, "DSC603", "/optimizer/params/eps"),
    (
        zero(2, offload_optimizer=CPU)
        | {"optimizer": {"type": "Lion", "params": {"set_grad_none": True}}},
        "DSC603",
        "/optimizer/params/set_grad_none",
    ),
    (
        zero(2, offload_optimizer=CPU)
        | {"optimizer": {"type": "Adagrad", "params": {"betas": [0.9, 0.99]}}},
        "DSC603",
        "/optimizer/params/betas",
    ),
    ({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 2.0]}}}, "DSC614",
     "/optimizer/params/betas/1"),
    ({"bfloat16": {"bf16_optimizer_states": True}} | zero(1), "DSC308",
     "/bfloat16/bf16_optimizer_states"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "code", "pointer"), FOUND)
def test_finding_has_pointer(change, code, pointer):
    config = {"train_micro_batch_size_per_gpu": 1, **change}
    report = dsconfig.validate(config, gather(gpus=8), runtime="deepspeed", version="0.19.8")
    places = {found.pointer for found in report.diagnostics if found.code == code}
    assert pointer in places


TORCH_SCHEDULE = {"scheduler": {"type": "StepLR", "params": {"step_size": 2}}}

LEFT_ALONE = [
    (
        experts(autoep_size=2)
        | zero(3, offload_optimizer=CPU, offload_param=CPU)
        | {"tensor_parallel": {"autotp_size": 1}},
        "DSC465",
    ),
    (TORCH_SCHEDULE, "DSC635"),
    (zero(0) | TORCH_SCHEDULE, "DSC635"),
    ({"aio": {}}, "DSC435"),
    ({"aio": {"block_size": 2**20}, "checkpoint": {"writer": {"type": "FAST"}}}, "DSC435"),
    ({"checkpoint": {"load_universal": False}}, "DSC903"),
    ({"checkpoint": {}}, "DSC903"),
    ({"managed_gradient_accumulation": False} | zero(1), "DSC417"),
    ({"optimizer": {"type": "AdamW", "params": {"lr": "x"}}}, "DSC032"),  # reported by DSC604
    (
        experts(autoep_size=2)
        | zero(1)
        | {"compile": {"deepcompile": True}, "tensor_parallel": {"autotp_size": 1}},
        "DSC465",
    ),
]


@pytest.mark.parametrize(("change", "code"), LEFT_ALONE)
def test_valid_config_is_not_reported(change, code):
    assert code not in codes({"train_batch_size": 8, **change}, gpus=8)


@pytest.mark.parametrize(
    ("change", "wrapper"),
    [
        (zero(1), "ZeRO stage 1"),
        ({"fp16": {"enabled": True}}, "fp16"),
        (zero(0) | {"bf16": {"enabled": True}}, "bf16"),
    ],
)
def test_torch_schedule_message_names_wrapper(change, wrapper):
    found = codes({"train_batch_size": 8, **TORCH_SCHEDULE, **change}, gpus=8)["DSC635"]
    assert f"the wrapped optimizer of {wrapper}:" in found.message


@pytest.mark.parametrize(
    ("change", "code", "start"),
    [
        (zero(4), "DSC031", "zero_optimization.stage is 4, but must be"),
        (zero(2, overlap_comm="often"), "DSC031", "zero_optimization.overlap_comm is "),
        ({"fp16": {"enabled": "x"}}, "DSC031", "fp16.enabled is "),
        (zero(2, reduce_bucket_size=10**30), "DSC036", "zero_optimization.reduce_bucket_size has"),
    ],
)
def test_value_message_starts_with_full_key(change, code, start):
    found = codes({"train_batch_size": 8, **change}, runtime="deepspeed")[code]
    assert found.message.startswith(start)


VERSIONS = [
    ({"bf16": None}, "0.16.0", "refused"),
    ({"bf16": None}, "0.19.8", "inert"),
    ({"zero_optimization": {"stage": 1.5}}, "0.14.5", "refused"),
    ({"fp16": {"enabled": True, "loss_scale": "1e3"}}, "0.18.0", "note"),
    ({"fp16": {"enabled": True, "min_loss_scale": 1e-10}}, "0.17.0", "note"),
    ({"fp16": {"enabled": True, "min_loss_scale": 1e-10}}, "0.17.1", "refused"),
    ({"tensorboard": {"job_name": 5}}, "0.14.5", "note"),
    ({"tensorboard": {"job_name": 5}}, "0.15.0", "refused"),
    ({"compile": {"passes": ["autotp"]}}, "0.19.2", "refused"),
    ({"zero_optimization": {"offload_optimizer": "cpu"}}, "0.5.10", "refused"),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}}, "0.18.2", "altered"),
]


@pytest.mark.parametrize(("change", "version", "effect"), VERSIONS)
def test_effect_depends_on_release(change, version, effect):
    config = {"train_batch_size": 8, **change}
    report = dsconfig.validate(config, gather(gpus=1), runtime="deepspeed", version=version)
    assert effect in {found.effect.value for found in report.diagnostics}


@pytest.mark.parametrize(
    ("change", "code", "release", "before"),
    [
        (sampling(dynamic_batching={"enabled": True}), "DSC913", "0.16.5", "0.16.4"),
        (zero(4), "DSC815", "0.6.7", "0.7.0"),
    ],
)
def test_rule_applies_to_its_releases_only(change, code, release, before):
    config = {"train_batch_size": 8, **change}
    assert code in codes(config, runtime="deepspeed", version=release)
    assert code not in codes(config, runtime="deepspeed", version=before)


@pytest.mark.parametrize(
    ("change", "code", "release", "without"),
    [
        (
            zero(2, offload_optimizer={"pin_memory": True})
            | {"optimizer": {"type": "Adam", "params": {"torch_adam": True}}},
            *("DSC439", "0.5.6", "0.5.7"),  # before, the default device was the CPU
        ),
        (
            {"fp16": {"enabled": True, "min_loss_scale": 2**20}},
            *("DSC323", "0.8.0", "0.7.7"),  # before, the scale started at 2^32
        ),
    ],
)
def test_missing_key_has_default_of_release(change, code, release, without):
    config = {"train_batch_size": 8} | change
    assert code in codes(config, runtime="deepspeed", version=release)
    assert code not in codes(config, runtime="deepspeed", version=without)


def test_template_is_checked_for_keys_only():
    text = """{"train_batch_size": {{ batch }}, "zero_optimisation": {"stage": 2},
        "gradient_clipping": -1, "fp16": {"enabled": "x"}}"""
    found = dsconfig.validate(text, version="0.19.8").diagnostics
    assert {each.code for each in found} == {"DSC008", "DSC021", "DSC701"}


def test_unread_documented_key_is_reported_in_template():
    text = '{"train_batch_size": {{ batch }}, "zero_optimization": {"grad_hooks": true}}'
    found = dsconfig.validate(text, version="0.19.8").diagnostics
    assert ("DSC029", "/zero_optimization/grad_hooks") in {
        (each.code, each.pointer) for each in found
    }


def test_sum_of_gradients_is_rejected_since_0_19_6():
    config = {"train_batch_size": 8, "gradient_allreduce_op": "sum"} | zero(3)
    assert "DSC416" in codes(config, runtime="deepspeed", version="0.19.6")
    assert "DSC416" not in codes(config, runtime="deepspeed", version="0.19.5")


@pytest.mark.parametrize(("steps", "reported"), [("100.0", False), ("1e2", False), ("100.5", True)])
def test_integral_float_steps_are_accepted_in_files_only(steps, reported):
    text = f"""{{"train_batch_size": 8, "scheduler":
        {{"type": "WarmupLR", "params": {{"warmup_num_steps": {steps}}}}}}}"""
    assert ("DSC636" in codes(text, gpus=8)) is reported
    assert "DSC636" in codes(json.loads(text), gpus=8)


@pytest.mark.parametrize(
    ("written", "safe"),
    [
        ('"amp": false', True),
        ('"amp": {"enabled": false}', True),
        ('"amp": null', True),
        ('"amp": {"enabled": true}', False),
        ('"zero_optimization": {"stage": 2, "cpu_offload": false}', True),
        ('"zero_optimization": {"stage": 2, "cpu_offload": null}', True),
    ],
)
def test_deleting_disabled_feature_is_a_safe_fix(written, safe):
    found = codes(f'{{"train_batch_size": 8, {written}}}', runtime="deepspeed", gpus=8)
    fixes = [each.fix for code, each in found.items() if code in ("DSC801", "DSC024")]
    assert [fix is not None and fix.applicability.value == "safe" for fix in fixes] == [safe]


def test_settings_of_a_removed_feature_are_not_deleted() -> None:
    block = {"enabled": True, "schedule_type": "fixed_linear"}
    found = codes({"train_batch_size": 8, "curriculum_learning": block}, runtime="deepspeed")
    assert found["DSC801"].fix is None


@pytest.mark.parametrize(("version", "refused"), [("0.3.7", True), ("0.3.8", False)])
def test_stage_3_requires_0_3_8(version, refused):
    found = codes({"train_batch_size": 8} | zero(3), runtime="deepspeed", version=version)
    assert ("DSC815" in found) is refused


def codes(config, **world):
    runtime, version = world.pop("runtime", None), world.pop("version", "0.19.8")
    report = dsconfig.validate(config, gather(**world), runtime=runtime, version=version)
    return {found.code: found for found in report.diagnostics}


AUTO = {"train_batch_size": "auto"} | zero(2, sub_group_size="auto", reduce_bucket_size="auto")


def test_auto_code_depends_on_program_that_fills_it():
    found = dsconfig.validate(AUTO, version="0.19.8").diagnostics
    by_place = {each.pointer: (each.code, each.severity.value) for each in found}
    assert by_place["/train_batch_size"] == ("DSC103", "info")
    assert by_place["/zero_optimization/reduce_bucket_size"] == ("DSC103", "info")
    assert by_place["/zero_optimization/sub_group_size"] == ("DSC102", "warning")


def test_auto_is_an_error_for_deepspeed():
    found = dsconfig.validate(AUTO, runtime="deepspeed", version="0.19.8").errors
    assert len([each for each in found if each.code == "DSC101"]) == 3


def test_auto_is_accepted_by_dsengine():
    found = dsconfig.validate(AUTO, runtime="dsengine", version="0.19.8").diagnostics
    assert not [each for each in found if each.code.startswith("DSC1")]


def test_finding_names_affected_programs():
    found = codes({"train_batch_size": 8, "amp": {"enabled": True}})["DSC801"]
    assert found.runtimes == ("deepspeed", "transformers", "accelerate")


def test_error_after_parsing_is_late():
    found = codes({"train_batch_size": 8, "optimizer": {"type": "Adamm"}}, gpus=8)
    assert found["DSC601"].late and found["DSC601"].effect.value == "refused"
    assert not codes({"gradient_accumulation_steps": 2})["DSC201"].late


def test_schema_and_comments_are_allowed_at_top_level():
    found = codes({"train_batch_size": 8, "$schema": "x.json", "_comment": "ours"}, gpus=8)
    assert found["DSC027"].severity.value == "info"
    assert found["DSC027"].pointer == "/_comment"


def test_comment_in_validated_block_has_safe_fix():
    document = dsconfig.read('{"train_batch_size": 8, "bf16": {"_comment": "x"}}', name="ds.json")
    report = dsconfig.validate(document, runtime="deepspeed", version="0.19.8")
    (found,) = [each for each in report.errors if each.code == "DSC027"]
    assert found.effect.value == "refused"
    assert found.fix is not None and found.fix.applicability.value == "safe"


def test_comment_in_optimizer_arguments_is_a_late_error():
    config = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"_note": "x"}}}
    assert codes(config, runtime="deepspeed")["DSC027"].late


def test_batch_without_world_size_is_checked_for_all_sizes():
    found = codes({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4})
    assert "no number of ranks" in found["DSC203"].message
    assert "DSC203" not in codes({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4})


@pytest.mark.parametrize("runtime", ["transformers", "accelerate", "dsengine"])
@pytest.mark.parametrize("is_valid", [True, False])
def test_batch_with_auto_is_checked_for_all_sizes(runtime: str, is_valid: bool) -> None:
    fixed = {"train_batch_size": 64, "zero_optimization": {"stage": 2}}
    for number, other in ((MICRO, STEPS), (STEPS, MICRO)):
        config = {**fixed, number: 4 if is_valid else 3, other: "auto"}
        for gpus in (None, 8):
            assert ("DSC203" in codes(config, runtime=runtime, gpus=gpus)) != is_valid


@pytest.mark.parametrize(
    ("path", "usual", "unusual"),
    [
        ("zero_optimization.reduce_bucket_size", (1e5, 5e8), (500, 2e10)),
        ("zero_optimization.allgather_bucket_size", (1e5, 5e8), (64, 2e10)),
        ("optimizer.params.lr", (0, 1e-4, 0.1), (5, 100)),
        ("optimizer.params.weight_decay", (0, 0.1), (10,)),
    ],
)
def test_unusual_magnitude(path: str, usual: tuple[float], unusual: tuple[float]) -> None:
    for value in (*usual, *unusual):
        config: dict[str, Any] = {
            "train_batch_size": 8,
            "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {}},
        }
        *blocks, key = path.split(".")
        block = config
        for name in blocks:
            block = block[name]
        block[key] = value
        assert ("DSC037" in codes(config)) == (value in unusual), value


def test_learning_rate_of_sgd_may_be_large() -> None:
    config = {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 5}}}
    assert "DSC037" not in codes(config)


@pytest.mark.parametrize("runtime", ["transformers", "accelerate", "deepspeed"])
@pytest.mark.parametrize("gathers", [True, False])
def test_accelerate_gathers_tensor_parallel_weights_at_every_stage(
    runtime: str, gathers: bool
) -> None:
    gather = {"stage3_gather_16bit_weights_on_model_save": True} if gathers else {}
    config = {
        "train_batch_size": 8,
        "tensor_parallel": {"autotp_size": 2},
        "zero_optimization": {"stage": 1, **gather},
    }
    found = codes(config, runtime=runtime).keys() & {"DSC402", "DSC403"}
    if runtime == "deepspeed":
        assert found == ({"DSC402"} if gathers else set[str]())
    else:
        assert found == (set[str]() if gathers else {"DSC403"})


def test_batch_mismatch_suggests_nearest_values():
    config = {"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4}
    help_ = not_none(codes(config, gpus=8)["DSC203"].help)
    assert "set it to 64" not in help_ and "32" in help_


def test_syntax_error_suppresses_rules():
    found = dsconfig.validate('{"train_batch_size": 8, "zero_optimization": {').diagnostics
    assert {each.code for each in found} == {"DSC002"}


def test_unknown_runtime_raises_value_error():
    with pytest.raises(ValueError, match="is not one of dsengine"):
        dsconfig.validate({"train_batch_size": 8}, runtime="megatron")


def test_parse_only_runtime_has_no_late_errors():
    from dsconfig.runtimes.deepspeed import deepspeed

    config = {"train_batch_size": 8, "optimizer": {"type": "Adamm"}}
    assert "DSC601" in codes(config, runtime=deepspeed())
    assert "DSC601" not in codes(config, runtime=deepspeed(until="parse"))


@pytest.mark.parametrize(
    ("minimum", "refused"), [(1e-10, False), (0.5, False), (-0.5, True), ("a", True)]
)
def test_dsengine_accepts_fractional_min_loss_scale(minimum, refused):
    config = {"train_batch_size": 8, "fp16": {"enabled": True, "min_loss_scale": minimum}}
    assert bool(dsconfig.validate(config, runtime="dsengine").errors) is refused
    assert dsconfig.validate(config, runtime="deepspeed", version="0.19.8").errors


@pytest.mark.parametrize("runtime", [None, "deepspeed", "transformers", "accelerate", "dsengine"])
def test_infinite_print_interval_of_accelerate_is_accepted_in_memory(runtime: str | None) -> None:
    config = {"train_batch_size": 8, "steps_per_print": math.inf}
    config["zero_optimization"] = {"stage": 1}
    assert not [each for each in _about_printing(config, runtime) if each != "info"]


@pytest.mark.parametrize(
    ("runtime", "accepted"),
    [("transformers", True), ("accelerate", True), ("deepspeed", False), ("dsengine", False)],
)
def test_infinite_print_interval_in_a_file_depends_on_its_reader(
    runtime: str, accepted: bool
) -> None:
    text = (
        '{"train_batch_size": 8, "zero_optimization": {"stage": 1},\n"steps_per_print": Infinity\n}'
    )
    assert ("error" not in _about_printing(text, runtime)) == accepted


def _about_printing(config: Any, runtime: str | None) -> list[str]:
    found = dsconfig.validate(config, dsconfig.gather(gpus=1), runtime=runtime).diagnostics
    return [each.severity for each in found if "steps_per_print" in each.pointer]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(("masters", "reported"), [(True, False), (False, True)])
def test_autocast_without_fp32_masters_is_accepted(
    stage: int, masters: bool, reported: bool
) -> None:
    config = {
        "train_batch_size": 8,
        "zero_optimization": {"stage": stage},
        "bf16": {
            "enabled": True,
            "bf16_master_weights_and_grads": masters,
            "bf16_optimizer_states": masters,
        },
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
    }
    found = dsconfig.validate(config, runtime="deepspeed", version="0.19.8")
    assert ("DSC302" in [error.code for error in found.errors]) == reported
    assert found.ok != reported


def test_elasticity_sets_the_batch_until_0_19_7() -> None:
    block = {"enabled": True, "max_train_batch_size": 64, "micro_batch_sizes": [2, 4]}
    for version, refuses in (("0.19.7", False), ("0.19.8", True)):
        report = dsconfig.validate({"elasticity": block}, runtime="deepspeed", version=version)
        found = {each.code for each in report.diagnostics}
        assert ("DSC201" in found) == refuses
