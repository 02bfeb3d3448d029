"""Help texts depend on the target release and on the source of the optimizer."""

import dsconfig


def helps(config: dict, version: str, code: str) -> list[str]:
    found = dsconfig.validate(config, runtime="deepspeed", version=version).diagnostics
    return [each.help or "" for each in found if each.code == code]


def test_help_names_only_keys_of_the_target_release() -> None:
    config = {"train_batch_size": 8, "gradient_accumulation_dtype": "fp32"}
    assert helps(config, "0.7.0", "DSC021") == ["delete it"]
    assert "data_types" in helps(config, "0.19.8", "DSC021")[0]


def test_missing_optimizer_with_offload_suggests_both_fixes() -> None:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    assert "DeepSpeedCPUAdam" not in helps(config, "0.19.8", "DSC613")[0]
    config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    (help,) = helps(config, "0.19.8", "DSC613")
    assert "DeepSpeedCPUAdam" in help and "zero_force_ds_cpu_optimizer" in help


def test_autotp_at_stage_3_is_reported_before_0_19_4() -> None:
    config = {"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2}}
    config["zero_optimization"] = {"stage": 3}
    counts = [len(helps(config, version, "DSC476")) for version in ("0.16.4", "0.19.3", "0.19.4")]
    assert counts == [1, 1, 0]


def test_disabled_prefetching_help_names_both_keys() -> None:
    zero = {"stage": 3, "stage3_max_live_parameters": 0}
    config = {"train_batch_size": 8, "zero_optimization": zero}
    assert helps(config, "0.19.8", "DSC405") == ['write "stage3_max_live_parameters": 1e9']
    zero["stage3_prefetch_bucket_size"] = 0
    assert '"stage3_prefetch_bucket_size": 5e7' in helps(config, "0.19.8", "DSC405")[0]


def test_remedies_for_auto_name_the_likeliest_program_first() -> None:
    config = {
        "train_batch_size": "auto",
        "activation_checkpointing": {"number_checkpoints": "auto"},
    }
    found = dsconfig.validate(config, runtime="deepspeed").diagnostics
    never, filled = sorted(each.help or "" for each in found if each.code == "DSC101")[::-1]
    assert filled.startswith("if transformers or accelerate reads this file")
    assert filled.index("runtime=; ") < filled.index("write a value") < filled.index("dsengine")
    assert never.startswith("write a value, or run")
