"""The view of a config, and effective settings: final types and the defaults of the version."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dsconfig import Facts
from dsconfig.facts import gather
from dsconfig.runtimes.config_view import ConfigView
from dsconfig.runtimes.effective import Effective, Precision, Tier, effective
from dsconfig.runtimes.transformers import transformers
from dsconfig.schema import NEWEST, Version
from dsconfig.schema.paths import (
    GATHER_BUCKET,
    GRADIENT_CLIPPING,
    PREFETCH_BUCKET,
    REDUCE_BUCKET,
    STAGE,
)
from dsconfig.source.pointer import ABSENT

CLASSIFIER = json.loads((Path(__file__).parents[2] / "examples" / "classifier.json").read_text())


def test_dataclass_defaults_equal_schema_defaults() -> None:
    derived, written = effective({}), Effective(batch=None)
    for each in fields(Effective):
        if each.name not in ("config", "batch"):
            assert getattr(derived, each.name) == getattr(written, each.name), each.name


@pytest.mark.parametrize(("version", "clipping"), [("0.19.8", 1.0), ("0.19.3", 1.0), ("0.19.2", 0)])
def test_defaults_depend_on_the_version(version: str, clipping: float) -> None:
    settled = effective({}, version=Version.parse(version))
    assert settled.gradients.clipping == clipping


def test_overlap_comm_is_on_by_default_at_stage_3_only() -> None:
    overlap = [
        effective({"zero_optimization": {"stage": stage}}).zero.overlap_comm for stage in range(4)
    ]
    assert overlap == [False, False, False, True]


def test_integral_floats_become_integers() -> None:
    zero = effective({"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}}).zero
    assert zero.reduce_bucket_size == 500_000_000
    assert isinstance(zero.reduce_bucket_size, int)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"train_micro_batch_size_per_gpu": 2}, (16, 2, 1)),
        ({"train_batch_size": 32}, (32, 4, 1)),
        ({"train_batch_size": 32, "gradient_accumulation_steps": 2}, (32, 2, 2)),
        ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 1}, (32, 1, 4)),
        (
            {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3},
            (48, 2, 3),
        ),
    ],
)
def test_batch_is_derived_from_the_given_values(
    given: dict[str, int], expected: tuple[int, int, int]
) -> None:
    batch = effective(given, Facts(world_size=8)).batch
    assert batch is not None
    assert (batch.global_batch, batch.micro_batch, batch.accumulation) == expected


@pytest.mark.parametrize(
    "given", [{}, {"gradient_accumulation_steps": 2}, {"train_batch_size": 33}]
)
def test_inconsistent_batch_is_none(given: dict[str, int]) -> None:
    assert effective(given, Facts(world_size=8)).batch is None


def test_precision_determines_dependent_settings() -> None:
    numerics = effective(CLASSIFIER).numerics
    assert numerics.precision is Precision.FP16
    assert numerics.loss_scale is not None
    assert numerics.loss_scale.static is None
    assert numerics.grad_accum_dtype is numerics.communication_dtype is Precision.FP16


def test_former_bf16_block_applies_if_the_new_one_is_absent() -> None:
    assert effective({"bfloat16": {"enabled": True}}).numerics.precision is Precision.BF16
    both = {"bfloat16": {"enabled": True}, "bf16": {"enabled": False}}
    assert effective(both).numerics.precision is Precision.FP32


def test_offload_tiers() -> None:
    zero = effective(CLASSIFIER).zero
    assert (zero.optimizer_tier, zero.parameter_tier) == (Tier.HOST, Tier.HOST)
    none = effective({"zero_optimization": {"offload_param": {"device": "none"}}}).zero
    assert none.offload_param is None


def test_enum_strings_are_case_insensitive() -> None:
    settled = effective({"checkpoint": {"tag_validation": "Fail"}, "gradient_allreduce_op": "SUM"})
    assert settled.checkpointing.tag_validation == "fail"
    assert settled.gradients.allreduce_op == "sum"


@pytest.mark.parametrize("name", ["float16", "torch.float16", "half", "fp16"])
def test_dtype_aliases(name: str) -> None:
    config = {"torch_autocast": {"enabled": True, "dtype": name}}
    assert effective(config).numerics.autocast == "float16"
    assert effective({"communication_data_type": name}).numerics.communication_dtype == "fp16"


@pytest.mark.parametrize(
    ("size", "dtype", "expected"), [(2, "fp32", "fp32"), (2, None, "bf16"), (1, "fp32", "bf16")]
)
def test_communication_dtype_of_divided_samples(
    size: int, dtype: str | None, expected: str
) -> None:
    config = {
        "communication_data_type": "bf16",
        "sequence_parallel_size": size,
        "seq_parallel_communication_data_type": dtype,
    }
    settled = effective(config, Facts(world_size=4))
    assert settled.numerics.communication_dtype == expected


def test_unresolved_auto_raises_with_the_key() -> None:
    with pytest.raises(ValueError, match="train_batch_size"):
        effective({"train_batch_size": "auto"}, Facts(world_size=1))


def test_aliases_of_stage_3_keys_apply() -> None:
    zero = effective({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 7}}).zero
    assert zero.prefetch_bucket_size == 7


def test_string_values_are_converted_as_in_deepspeed() -> None:
    """pydantic converts "false"; a key without a model has its Python truth value."""
    config = {
        "zero_optimization": {"stage": "2", "overlap_comm": "false", "cpu_offload": "true"},
        "prescale_gradients": "false",
    }
    held = effective(config)
    assert (held.zero.stage, held.zero.overlap_comm) == (2, False)
    assert held.zero.optimizer_tier is Tier.HOST
    assert held.gradients.prescale is True
    assert effective(config, version=Version(0, 6, 7)).zero.overlap_comm is True


def view(config: dict[str, Any], facts: Facts | None = None, **given: Any) -> ConfigView:
    return ConfigView(config, facts or Facts(), NEWEST, **given)


def test_view_returns_what_is_written_and_what_the_program_reads() -> None:
    """``"2"`` is converted, and a key that is missing or null has the default."""
    seen = view({"zero_optimization": {"stage": "2", "reduce_bucket_size": None}})
    assert (seen.given(STAGE), seen.value(STAGE), seen.stage) == ("2", 2, 2)
    assert seen.given(REDUCE_BUCKET) is None and not seen.is_set(REDUCE_BUCKET)
    assert seen.given(GATHER_BUCKET) is ABSENT
    assert seen.value(REDUCE_BUCKET) == seen.value(GATHER_BUCKET) == 500_000_000


def test_view_reads_a_key_under_any_of_its_names() -> None:
    seen = view({"zero_optimization": {"prefetch_bucket_size": 7}})
    assert seen.given(PREFETCH_BUCKET) == seen.value(PREFETCH_BUCKET) == 7
    assert not seen.has(*PREFETCH_BUCKET)


def test_view_has_the_value_that_facts_decide_for_auto() -> None:
    config = {"gradient_clipping": "auto", "zero_optimization": {"stage": 2}}
    run = gather(gpus=1, training_args={"max_grad_norm": 0.5})
    decided = view(config, run, program=transformers())
    assert decided.value(GRADIENT_CLIPPING) == 0.5 and not decided.is_auto(GRADIENT_CLIPPING)
    assert decided.as_written == config
    open_view = view(config, run)
    assert open_view.is_auto(GRADIENT_CLIPPING)
    with pytest.raises(ValueError, match=r'gradient_clipping is still "auto"'):
        open_view.value(GRADIENT_CLIPPING)
