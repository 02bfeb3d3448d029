"""Known faults of DeepSpeed releases are reported for the affected releases only."""

import os

import pytest

import dsconfig
from checks.record_known_faults import LINES
from dsconfig.checks.fault import EVIDENCE, RANGES, Evidence
from dsconfig.checks.registry import rules
from dsconfig.reference.examples import check_example
from dsconfig.schema.version import Version

STAGE_2 = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 8,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


def codes(config: dict, version: str) -> dict[str, str]:
    found = dsconfig.validate(config, runtime="deepspeed", version=version).diagnostics
    return {each.code: each.severity for each in found if each.code in RANGES}


@pytest.mark.parametrize("code", [code for code in rules() if code in RANGES])
def test_fault_is_reported_in_its_range_only(code: str) -> None:
    first, last = RANGES[code]
    bad = rules()[code].bad
    for version, expected in ((first, True), (last, True), (_after(last), False)):
        found = {each.code for each in check_example(bad._replace(version=str(version)))}
        assert (code in found) == expected, (code, version)


def test_every_range_states_how_it_is_known() -> None:
    by_lines = {code for code in RANGES if str(Evidence.EVERY) in EVIDENCE[code]}
    assert by_lines == LINES.keys()
    assert EVIDENCE.keys() >= RANGES.keys()


def _after(version: Version) -> Version:
    return version._replace(patch=version.patch + 1)


def test_fault_requires_several_accumulation_steps() -> None:
    assert codes(STAGE_2, "0.18.2")["DSC830"] == "error"
    assert "DSC830" not in codes({**STAGE_2, "gradient_accumulation_steps": 1}, "0.18.2")
    assert codes({**STAGE_2, "gradient_accumulation_steps": "auto"}, "0.18.2")["DSC830"] == "info"


def test_accumulation_steps_are_derived_from_batch_and_ranks() -> None:
    config = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 2},
    }
    for ranks, severity in ((2, "error"), (8, None), (None, "info")):
        facts = dsconfig.gather(gpus=ranks)
        found = dsconfig.validate(config, facts, runtime="deepspeed", version="0.18.0")
        severities = {each.code: each.severity for each in found.diagnostics}
        assert severities.get("DSC830") == severity, ranks


def test_default_clipping_is_not_reported_with_unscaled_gradients() -> None:
    config = {"train_batch_size": 16, "fp16": {"enabled": True}}
    for more, expected in (({}, {"DSC845"}), ({"zero_optimization": {"stage": 1}}, {"DSC818"})):
        found = dsconfig.validate({**config, **more}, runtime="deepspeed", version="0.19.8")
        seen = {each.code for each in found.diagnostics}
        assert seen & {"DSC818", "DSC845"} == expected


def test_release_change_lists_fixed_and_new_faults() -> None:
    document = dsconfig.read(STAGE_2)
    made = dsconfig.diff(document, from_version="0.17.6", to_version="0.18.5")
    told = {(each.before, each.after, each.said[:6]) for each in made}
    assert ("known bug", "fixed", "DSC830") in told
    assert ("correct", "known bug", "DSC844") in told


@pytest.mark.deep
def test_fault_ranges_match_deepspeed_sources() -> None:
    from checks.record_known_faults import differing

    clone = os.environ.get("DEEPSPEED_CLONE")
    if clone is None:
        pytest.skip("DEEPSPEED_CLONE names no clone of DeepSpeed with its tags")
    assert differing(clone) == []


def test_fault_without_reduce_scatter_is_not_reported_by_default() -> None:
    zero = {"stage": 3, "contiguous_gradients": True}
    plain = {"train_batch_size": 8, "zero_optimization": zero}
    without = {**plain, "zero_optimization": {**zero, "reduce_scatter": False}}
    assert "DSC841" in codes(without, "0.10.0")
    assert "DSC841" not in codes(plain, "0.10.0")


MUON = {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02}}}
OFFLOADED = {"stage": 2, "offload_optimizer": {"device": "cpu"}}


@pytest.mark.parametrize(
    ("zero", "version", "expected"),
    [
        ({"stage": 2}, "0.18.4", {"DSC606"}),
        ({"stage": 2}, "0.18.5", set()),
        ({"stage": 3, "reduce_scatter": False}, "0.18.8", {"DSC621"}),
        ({"stage": 3, "reduce_scatter": False}, "0.18.9", set()),
        (OFFLOADED, "0.19.2", set()),
        (OFFLOADED, "0.19.3", {"DSC621"}),
        ({**OFFLOADED, "reduce_scatter": False}, "0.19.7", set()),
        (OFFLOADED, "0.19.8", set()),
    ],
)
def test_releases_that_reject_muon(zero: dict, version: str, expected: set[str]) -> None:
    config = {**MUON, "zero_optimization": zero}
    found = dsconfig.validate(config, runtime="deepspeed", version=version).diagnostics
    assert {each.code for each in found} & {"DSC606", "DSC621"} == expected


def test_rejected_muon_offload_is_not_also_a_fault() -> None:
    for scatters, expected in ((True, set()), (False, {"DSC850"})):
        zero = {**OFFLOADED, "reduce_scatter": scatters}
        found = codes({**MUON, "zero_optimization": zero}, "0.19.5")
        assert found.keys() & {"DSC850", "DSC851"} == expected


def test_muon_rejected_as_untested_is_not_also_a_fault() -> None:
    allowed = {"zero_allow_untested_optimizer": True}
    for more, expected in (({}, set()), (allowed, {"DSC850"})):
        zero = {**OFFLOADED, "reduce_scatter": False}
        found = codes({**MUON, **more, "zero_optimization": zero}, "0.18.4")
        assert found.keys() & {"DSC850", "DSC851", "DSC852"} == expected


def test_one_rank_reduces_no_gradients_for_muon() -> None:
    config = {**MUON, "zero_optimization": {"stage": 2}}
    for ranks, expected in ((1, set()), (2, {"DSC851"})):
        found = dsconfig.validate(
            config, dsconfig.gather(gpus=ranks), runtime="deepspeed", version="0.19.0"
        )
        assert {each.code for each in found.diagnostics} & {"DSC851"} == expected


def test_fp16_optimizer_of_the_script_steps() -> None:
    config = {"train_batch_size": 8, "fp16": {"enabled": True}}
    assert "DSC860" not in codes(config, "0.18.1")
    adam = {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}
    assert "DSC860" not in codes({**config, "optimizer": adam}, "0.18.1")


def test_elastic_batch_within_limit_is_correct() -> None:
    cases = ([8, 12], {"DSC862"}), ([8, 16], set()), ([8, 32], set()), ([-4, 3, 7], set())
    for sizes, expected in cases:
        block = {"enabled": True, "max_train_batch_size": 16, "micro_batch_sizes": sizes}
        assert codes({"elasticity": block}, "0.19.5").keys() & {"DSC862"} == expected


@pytest.mark.parametrize(
    ("arguments", "transformers", "severity"),
    [
        ({"gradient_checkpointing_kwargs": {"use_reentrant": False}}, None, "error"),
        ({"gradient_checkpointing_kwargs": {"use_reentrant": True}}, "5.13.0", None),
        ({}, "5.13.0", "error"),
        ({}, "4.57.3", None),
        ({}, None, "info"),
        ({"gradient_checkpointing": False}, "5.13.0", None),
    ],
)
def test_recomputed_frozen_weights_depend_on_reentrancy(
    arguments: dict, transformers: str | None, severity: str | None
) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    facts = dsconfig.gather(
        model="llama-2-7b",
        lora_rank=16,
        training_args={"gradient_checkpointing": True, **arguments},
        releases={"transformers": transformers} if transformers else None,
    )
    report = dsconfig.validate(config, facts, runtime="transformers", version="0.19.2")
    found = {each.code: each.severity for each in report.diagnostics}
    assert found.get("DSC864") == severity


def test_adapters_are_known_from_the_yaml_of_a_trainer(tmp_path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}'
    )
    for method, expected in (("lora", True), ("full", False)):
        path = tmp_path / f"{method}.yaml"
        path.write_text(
            f"finetuning_type: {method}\ndeepspeed: ds.json\nper_device_train_batch_size: 1\n"
            "gradient_checkpointing: true\nlearning_rate: 0.0001\nbf16: true\n"
        )
        report = dsconfig.validate(path, runtime="transformers", version="0.19.2")
        assert ("DSC864" in {each.code for each in report.diagnostics}) == expected


def test_full_training_recomputes_no_frozen_weights() -> None:
    facts = dsconfig.gather(model="llama-2-7b", training_args={"gradient_checkpointing": True})
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    report = dsconfig.validate(config, facts, runtime="transformers", version="0.19.2")
    assert "DSC864" not in {each.code for each in report.diagnostics}
