"""Weights that a release does not load, or loads unsharded, at stage 3."""

from typing import Any

import pytest

import dsconfig
from dsconfig.checks.registry import rules
from dsconfig.project.inference import target_program
from dsconfig.reference.examples import check_example

RANGES = {
    "DSC867": ("transformers", "4.57.6", "5.0.0", "5.1.0", "5.2.0"),
    "DSC868": ("transformers", "5.3.0", "5.4.0", "5.5.4", "5.6.0"),
    "DSC869": ("trl", "0.16.0", "0.26.0", "1.5.1", "1.6.0"),
    "DSC870": ("transformers", "5.4.0", "5.5.0", "5.5.4", "5.6.0"),
}
"""Program, release before the fault, first, last, and release after (GRPO with Liger)."""
STAGE_3 = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}


@pytest.mark.parametrize("code", RANGES)
def test_fault_is_reported_in_its_range_only(code: str) -> None:
    program, before, first, last, after = RANGES[code]
    bad = rules()[code].bad
    for release, expected in ((before, False), (first, True), (last, True), (after, False)):
        found = {each.code for each in check_example(bad.with_facts(releases={program: release}))}
        assert (code in found) == expected, release


def found(arguments: dict[str, Any], trl: str, **facts: Any) -> dict[str, str]:
    known = dsconfig.gather(training_args=arguments, releases={"trl": trl}, **facts)
    report = dsconfig.validate(STAGE_3, known, runtime="transformers")
    return {each.code: each.severity for each in report.diagnostics}


def test_preference_losses_were_fixed_later() -> None:
    dpo = {"use_liger_kernel": True, "precompute_ref_log_probs": False}
    assert "DSC869" in found(dpo, "1.8.0")
    assert "DSC869" not in found(dpo, "1.9.0")


def test_sft_and_the_former_kernel_flag_are_not_affected() -> None:
    assert "DSC869" not in found({"use_liger_kernel": True}, "1.5.1")
    grpo = {"num_generations": 8}
    assert "DSC869" not in found({**grpo, "use_liger_kernel": True}, "0.23.1")
    assert "DSC869" in found({**grpo, "use_liger_loss": True}, "0.23.1")


def test_tied_head_may_be_gathered() -> None:
    grpo = {"use_liger_kernel": True, "num_generations": 8}
    assert found(grpo, "1.5.1", model="gpt2")["DSC869"] == "info"
    assert found(grpo, "1.5.1", model="llama-2-7b")["DSC869"] == "error"


def test_trl_runs_in_the_trainer() -> None:
    known = dsconfig.gather(releases={"trl": "1.5.1"})
    target = target_program(None, None, document=dsconfig.read(STAGE_3), facts=known)
    assert target.runtime.name == "transformers" and target.inferred_from == "--with"
    assert target.checked_releases == ("trl 1.5.1",)


def test_one_rank_does_not_wait_and_loads_no_copies() -> None:
    for code in ("DSC477", "DSC504"):
        bad = rules()[code].bad
        assert code not in {each.code for each in check_example(bad.with_facts(gpus=1))}


def test_quantization_in_a_trainers_yaml() -> None:
    bad = rules()["DSC504"].bad.with_facts(model=None, lora_rank=None, base_weights=None)
    for setting, expected in (("true", True), ("false", False)):
        text = f"load_in_4bit: {setting}\nlearning_rate: 1e-4\ndeepspeed: {bad.config}\n"
        made = bad._replace(config=text, name="train.yaml")
        assert ("DSC504" in {each.code for each in check_example(made)}) == expected
