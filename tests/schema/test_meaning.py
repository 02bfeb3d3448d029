"""Normalization: equivalent spellings have equal meaning."""

from typing import Any

import pytest

from dsconfig.schema import paths
from dsconfig.schema.meaning import Meaning, meaning
from dsconfig.schema.version import NEWEST, Version


def means(config: dict[str, Any], version: Version = NEWEST) -> dict[str, Any]:
    return {".".join(path): value for path, value in meaning(config, version).settings.items()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"zero_optimization": True}, {"zero_optimization": {"stage": 1}}),
        ({"bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}),
        (
            {"zero_optimization": {"prefetch_bucket_size": 5e7}},
            {"zero_optimization": {"stage3_prefetch_bucket_size": 50_000_000}},
        ),
        (
            {"zero_optimization": {"cpu_offload": True}},
            {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
        ),
        (
            {"zero_optimization": {"stage3_gather_fp16_weights_on_model_save": True}},
            {"zero_optimization": {"gather_16bit_weights_on_model_save": True}},
        ),
        ({"optimizer": {"type": "ADAMW"}}, {"optimizer": {"type": "AdamW"}}),
        ({"communication_data_type": "FP16"}, {"communication_data_type": "fp16"}),
        (
            {"data_types": {"grad_accum_dtype": "torch.bfloat16"}},
            {"data_types": {"grad_accum_dtype": "bf16"}},
        ),
        (
            {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}},
            {"optimizer": {"type": "SGD", "params": {"lr": 1}}},
        ),
    ],
)
def test_equivalent_spellings_have_equal_meaning(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert means(one) == means(other) != {}


def test_key_set_under_both_names_is_kept() -> None:
    zero = {"cpu_offload": True, "offload_optimizer": {"device": "nvme"}}
    assert means({"zero_optimization": zero})["zero_optimization.cpu_offload"] is True


def test_keys_of_other_releases_are_unread() -> None:
    old = meaning(
        {"amp": {"enabled": True}, "unknown": {"x": 1}, "bf16": {"enabled": True}}, NEWEST
    )
    assert old.unread == {("amp",): {"enabled": True}, ("unknown",): {"x": 1}}
    assert list(old.settings) == [("bf16", "enabled")]
    assert meaning({"amp": {"enabled": True}}, Version(0, 14, 4)).unread == {}


class TestDefaults:
    def of(self, config: dict[str, Any], version: Version = NEWEST) -> Meaning:
        return meaning(config, version)

    def test_are_those_of_the_release(self) -> None:
        assert self.of({}).value(paths.GRADIENT_CLIPPING) == 1
        assert self.of({}, Version(0, 14, 4)).value(paths.GRADIENT_CLIPPING) == 0

    @pytest.mark.parametrize(("stage", "overlap"), [(2, False), (3, True)])
    def test_overlap_follows_the_stage(self, stage: int, overlap: bool) -> None:
        config = self.of({"zero_optimization": {"stage": stage}})
        assert config.value(paths.OVERLAP_COMM) is overlap

    def test_missing_optimizer_has_no_arguments(self) -> None:
        assert self.of({}).value(paths.LEARNING_RATE) is None
        muon = self.of({"optimizer": {"type": "Muon"}})
        assert muon.value(paths.LEARNING_RATE) == 0.02

    def test_unknown_path_is_none(self) -> None:
        assert self.of({}).value(paths.ROOT / "nothing") is None

    def test_lists_are_compared_by_value(self) -> None:
        config = {"optimizer": {"type": "Lion", "params": {"betas": [0.0, 1.0]}}}
        assert self.of(config).value(paths.OPTIMIZER_PARAMS / "betas") == [0, 1]
