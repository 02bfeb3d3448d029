"""One finding per problem: the less specific of two findings at one key is left out."""

from typing import Any

import pytest

import dsconfig
from dsconfig.checks.registry import rules
from dsconfig.checks.superseded import AT_THE_KEY, IN_THE_BLOCK
from dsconfig.reference.rule_pages import check_example

BATCH = {"train_batch_size": 8}


def test_every_code_of_the_table_is_a_rule() -> None:
    table = {**AT_THE_KEY, **IN_THE_BLOCK}
    assert {*table, *(code for codes in table.values() for code in codes)} <= {*rules(), "DSC322"}


@pytest.mark.parametrize("code", sorted({code for codes in AT_THE_KEY.values() for code in codes}))
def test_example_has_no_superseded_finding(code: str) -> None:
    found = check_example(rules()[code].bad)
    own = {each.pointer for each in found if each.code == code}
    others = [each.code for each in found if each.pointer in own]
    assert code in others
    assert not [each for each in others if code in AT_THE_KEY.get(each, ())]


@pytest.mark.parametrize(
    ("config", "runtime", "kept", "dropped"),
    [
        ({"eigenvalue": {"model_name": "x"}}, "deepspeed", "DSC801", "DSC021"),
        ({"eigenvalue": {"enabled": True, "model_name": "x"}}, "dsengine", "DSC803", "DSC021"),
        ({"amp": {"enabled": True, "loss_scale": 8}}, "deepspeed", "DSC801", "DSC022"),
        ({"fp16": {"enabled": True, "min_loss_scale": 0.05}}, "deepspeed", "DSC031", "DSC322"),
    ],
)
def test_rejected_block_is_reported_once(
    config: dict[str, Any], runtime: str, kept: str, dropped: str
) -> None:
    codes = [each.code for each in dsconfig.validate(BATCH | config, runtime=runtime).diagnostics]
    assert kept in codes and dropped not in codes


def test_finding_of_another_program_stays() -> None:
    """A fraction is rejected by DeepSpeed only; dsengine gets the advice."""
    config = BATCH | {"fp16": {"enabled": True, "min_loss_scale": 0.05}}
    codes = [each.code for each in dsconfig.validate(config, runtime="dsengine").diagnostics]
    assert "DSC322" in codes


def test_magnitude_needs_a_reason() -> None:
    optimizer = {"optimizer": {"type": "AdamW", "params": {"lr": -0.001}}}
    found = dsconfig.validate(BATCH | optimizer, runtime="deepspeed").diagnostics
    assert [each.code for each in found if each.pointer == "/optimizer/params/lr"] == ["DSC614"]
