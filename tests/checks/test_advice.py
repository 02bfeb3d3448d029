"""Advice that holds for the release judged, and for the way an optimizer comes."""

import dsconfig


def helps(config: dict, version: str, code: str) -> list[str]:
    found = dsconfig.validate(config, runtime="deepspeed", version=version).diagnostics
    return [each.help or "" for each in found if each.code == code]


def test_a_release_is_not_advised_a_key_that_it_does_not_have() -> None:
    config = {"train_batch_size": 8, "gradient_accumulation_dtype": "fp32"}
    assert helps(config, "0.7.0", "DSC021") == ["delete it"]
    assert "data_types" in helps(config, "0.19.8", "DSC021")[0]


def test_an_offloaded_optimizer_of_the_script_comes_with_both_remedies() -> None:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    assert "DeepSpeedCPUAdam" not in helps(config, "0.19.8", "DSC613")[0]
    config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    (said,) = helps(config, "0.19.8", "DSC613")
    assert "DeepSpeedCPUAdam" in said and "zero_force_ds_cpu_optimizer" in said


def test_layers_are_not_split_at_stage_3_before_they_can_be() -> None:
    config = {"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2}}
    config["zero_optimization"] = {"stage": 3}
    told = [len(helps(config, version, "DSC476")) for version in ("0.16.4", "0.19.3", "0.19.4")]
    assert told == [1, 1, 0]


def test_fetching_ahead_is_given_back_by_both_keys_that_forbid_it() -> None:
    zero = {"stage": 3, "stage3_max_live_parameters": 0}
    config = {"train_batch_size": 8, "zero_optimization": zero}
    assert helps(config, "0.19.8", "DSC405") == ['write "stage3_max_live_parameters": 1e9']
    zero["stage3_prefetch_bucket_size"] = 0
    assert '"stage3_prefetch_bucket_size": 5e7' in helps(config, "0.19.8", "DSC405")[0]
