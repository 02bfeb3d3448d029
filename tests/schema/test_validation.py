"""Errors of the strict models: kind, position and expected value."""

from typing import Any

import pytest
from pydantic import ValidationError

from dsconfig import schema
from dsconfig.schema import DSConfig, ErrorKind, SchemaError, errors


def only(config: Any) -> SchemaError:
    found = errors(config)
    assert len(found) == 1, found
    return found[0]


def pointers(config: Any) -> list[str]:
    return [error.pointer for error in errors(config)]


class TestNumbers:
    @pytest.mark.parametrize("value", [1, 5e8, 10**30])
    def test_integral_float_is_an_integer(self, value: float) -> None:
        assert errors({"zero_optimization": {"reduce_bucket_size": value}}) == []

    @pytest.mark.parametrize("value", [1.5, True, "1", "5e8", None, [1], float("inf")])
    def test_other_values_are_not_integers(self, value: Any) -> None:
        error = only({"zero_optimization": {"reduce_bucket_size": value}})
        assert error.kind is ErrorKind.TYPE
        assert error.pointer == "/zero_optimization/reduce_bucket_size"
        assert error.expected == 'an integer greater than 0 or "auto"'

    @pytest.mark.parametrize("value", [True, "1.0", None, [0.1]])
    def test_number_rejects_string_and_bool(self, value: Any) -> None:
        assert only({"gradient_clipping": value}).kind is ErrorKind.TYPE

    def test_number_keeps_int_or_float(self) -> None:
        config = DSConfig.model_validate({"gradient_clipping": 1})
        assert type(config.gradient_clipping) is int

    @pytest.mark.parametrize(
        ("block", "name", "value", "expected"),
        [
            ("fp16", "loss_scale", -1, "a number of at least 0"),
            ("fp16", "loss_scale", float("nan"), "a number of at least 0"),
            ("fp16", "min_loss_scale", 0, "an integer greater than 0"),
            ("zero_optimization", "sub_group_size", -1, 'an integer of at least 0 or "auto"'),
        ],
    )
    def test_bounds(self, block: str, name: str, value: float, expected: str) -> None:
        error = only({block: {name: value}})
        assert (error.kind, error.expected) == (ErrorKind.BOUND, expected)

    def test_shares(self) -> None:
        zero = {"offload_optimizer": {"ratio": 1.1}, "zenflow": {"topk_ratio": 0}}
        found = {error.pointer: error.expected for error in errors({"zero_optimization": zero})}
        assert found == {
            "/zero_optimization/offload_optimizer/ratio": "a number from 0 to 1",
            "/zero_optimization/zenflow/topk_ratio": "a number between 0 and 1",
        }

    def test_a_pair_has_two(self) -> None:
        error = only({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})
        assert error.kind is ErrorKind.BOUND


class TestWords:
    def test_a_stage_is_one_of_four(self) -> None:
        assert only({"zero_optimization": {"stage": 4}}).kind is ErrorKind.CHOICE
        assert only({"zero_optimization": {"stage": True}}).kind is ErrorKind.TYPE
        assert errors({"zero_optimization": {"stage": 2.0}}) == []

    def test_choices_are_case_sensitive(self) -> None:
        error = only({"zero_optimization": {"offload_param": {"device": "CPU"}}})
        assert error.kind is ErrorKind.CHOICE
        assert error.expected == 'one of "cpu", "none", "nvme" or "auto"'

    def test_choices_are_case_insensitive_as_in_deepspeed(self) -> None:
        assert (
            errors({"communication_data_type": "FP16", "checkpoint": {"tag_validation": "fail"}})
            == []
        )

    def test_auto_is_accepted_if_filled_in(self) -> None:
        assert errors({"train_batch_size": "auto", "bf16": {"enabled": "auto"}}) == []

    def test_native_auto_is_accepted(self) -> None:
        zenflow = {"select_interval": "auto", "select_strategy": "auto"}
        assert (
            errors({"zero_optimization": {"zenflow": zenflow}, "pipeline": {"stages": "auto"}})
            == []
        )

    def test_other_auto_has_its_own_error_kind(self) -> None:
        error = only({"zero_optimization": {"contiguous_gradients": "auto"}})
        assert (error.kind, error.expected) == (ErrorKind.AUTO, "true or false")


class TestBlocks:
    @pytest.mark.parametrize("value", [None, 5, "auto", [], True])
    def test_block_must_be_object(self, value: Any) -> None:
        error = only({"fp16": value})
        assert error.pointer == "/fp16"
        assert error.expected == "an object"

    def test_null_is_accepted_for_nullable_keys(self) -> None:
        assert errors({"aio": None, "zero_optimization": {"offload_param": None}}) == []

    def test_zero_optimization_accepts_boolean(self) -> None:
        assert errors({"zero_optimization": True}) == []

    def test_root_must_be_object(self) -> None:
        for value in ([], None, "x"):
            assert only(value).pointer == ""
            assert only(value).expected == "an object"

    def test_user_defined_names(self) -> None:
        quantizer = {"num_bits": 8, "group_size": 64, "group_dim": 0, "symmetric": False}
        config = {
            "weight_quantization": {"post_init_quant": {"a.b/c": quantizer | {"num_bits": 3}}}
        }
        assert only(config).pointer == "/weight_quantization/post_init_quant/a.b~1c/num_bits"

    def test_list_items(self) -> None:
        specs = [{"patterns": ["q"]}, {"partition_type": "diagonal"}]
        config = {"tensor_parallel": {"partition_config": {"layer_specs": specs}}}
        assert only(config).pointer == (
            "/tensor_parallel/partition_config/layer_specs/1/partition_type"
        )

    def test_python_objects_are_rejected(self) -> None:
        error = only({"tensor_parallel": {"dtype": "torch.float16"}})
        assert error.expected == "a Python torch.dtype"

    def test_missing_keys(self) -> None:
        error = only({"scheduler": {"type": "WarmupDecayLR", "params": {}}})
        assert error.kind is ErrorKind.MISSING
        assert error.pointer == "/scheduler/params/total_num_steps"

    def test_all_errors_are_reported_at_once(self) -> None:
        config = {
            "train_batch_size": 0,
            "fp16": {"enabled": 1, "enabld": True},
            "zero_optimization": {"stage": 9, "offload_param": {"device": 5}},
            "optimizer": {"type": "AdamW", "params": {"lr": "x", "lrr": 1}},
        }
        assert pointers(config) == [
            "/train_batch_size",
            "/fp16/enabled",
            "/fp16/enabld",
            "/zero_optimization/stage",
            "/zero_optimization/offload_param/device",
            "/optimizer/params/lr",
            "/optimizer/params/lrr",
        ]


class TestUnknownKeys:
    def test_report_known_names_of_block(self) -> None:
        error = only({"bf16": {"enabld": True}})
        assert error.kind is ErrorKind.UNKNOWN
        assert error.known[0] == "enabled"

    def test_known_names_include_aliases_not_removed_keys(self) -> None:
        known = only({"zero_optimization": {"stag": 1}}).known
        assert "prefetch_bucket_size" in known
        assert "mics_shard_size" not in known

    def test_at_the_root(self) -> None:
        assert "zero_optimization" in only({"zero": {}}).known

    def test_known_arguments_follow_type(self) -> None:
        error = only(
            {
                "optimizer": {"type": "sgd", "params": {}},
            }
        )
        assert error.pointer == "/optimizer/type"
        error = only({"optimizer": {"type": "SGD", "params": {"momentm": 1}}})
        assert "nesterov" in error.known
        assert "betas" not in error.known

    def test_in_a_block_without_known_names(self) -> None:
        assert schema.known_names({}, ("no", "such", "block")) == ()

    def test_non_string_keys(self) -> None:
        assert only({1: 2}).kind is ErrorKind.UNKNOWN


class TestOptimizersAndSchedulers:
    @pytest.mark.parametrize("name", ["adamw", "ADAMW", "AdamW", "oNeBiTaDaM", "muon"])
    def test_deepspeed_names_are_case_insensitive(self, name: str) -> None:
        assert errors({"optimizer": {"type": name, "params": {"lr": 1e-3}}}) == []

    def test_torch_names_are_case_sensitive(self) -> None:
        assert errors({"optimizer": {"type": "RMSprop", "params": {"centered": True}}}) == []
        assert only({"optimizer": {"type": "rmsprop"}}).pointer == "/optimizer/type"

    def test_arguments_may_be_null_for_an_optimizer_only(self) -> None:
        assert errors({"optimizer": {"type": "Adam", "params": None}}) == []
        assert only({"scheduler": {"type": "WarmupLR", "params": None}}).kind is ErrorKind.TYPE

    @pytest.mark.parametrize("name", ["WarmupCosine", 5, None])
    def test_unknown_type_reports_only_the_type(self, name: Any) -> None:
        assert pointers({"scheduler": {"type": name, "params": {"anything": 1}}}) == [
            "/scheduler/type"
        ]

    def test_arguments_must_be_object_for_any_type(self) -> None:
        assert pointers({"scheduler": {"type": "none", "params": 5}}) == [
            "/scheduler/type",
            "/scheduler/params",
        ]

    def test_learning_rate_per_group(self) -> None:
        params = {"warmup_min_lr": [0, 0.1], "warmup_max_lr": [0.1, "x"]}
        error = only({"scheduler": {"type": "WarmupLR", "params": params}})
        assert error.pointer == "/scheduler/params/warmup_max_lr/1"


def test_typed_config_has_attributes() -> None:
    config = DSConfig.model_validate(
        {"zero_optimization": {"stage": 3, "prefetch_bucket_size": 5e7}, "bf16": {"enabled": True}}
    )
    assert config.bf16 is not None and config.bf16.enabled is True
    zero = config.zero_optimization
    assert not isinstance(zero, bool) and zero is not None
    assert zero.stage3_prefetch_bucket_size == 50_000_000
    assert config.fp16 is None


def test_typed_config_is_frozen() -> None:
    config = DSConfig.model_validate({"train_batch_size": 8})
    with pytest.raises(ValidationError):
        config.train_batch_size = 9
