"""Findings about optimizer arguments, values and "auto": message, help and fix."""

import json
from typing import Any

import pytest

import dsconfig
from dsconfig.facts import gather

REFUSED, ALTERED, INERT, NOTE = "refused", "altered", "inert", "note"


def found(code: str, config: dict[str, Any]) -> list[dsconfig.Diagnostic]:
    document = dsconfig.read(json.dumps({"train_batch_size": 8, **config}))
    report = dsconfig.validate(document, gather(gpus=1))
    return [each for each in report.diagnostics if each.code == code]


def optimizer(kind: str = "AdamW", **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": params}}


@pytest.mark.parametrize(
    ("params", "help", "renamed"),
    [
        ({"learning_rate": 1e-3}, 'did you mean "lr"?', '"lr"'),
        ({"learning_rate": 1e-3, "lr": 1e-3}, 'did you mean "lr"?', None),
        ({"weight_decya": 0.1}, 'did you mean "weight_decay"?', '"weight_decay"'),
        ({"lr": 1e-3, "zzzz": 1}, "delete it", None),
    ],
)
def test_unknown_optimizer_argument_suggests_rename(
    params: dict[str, Any], help: str, renamed: str | None
) -> None:
    [finding] = found("DSC603", optimizer(**params))
    assert (finding.effect.value, finding.help) == (REFUSED, help)
    edits = [edit.content for edit in finding.fix.edits] if finding.fix else [None]
    assert edits == [renamed]


def test_known_arguments_and_comments_are_not_reported() -> None:
    assert not found("DSC603", optimizer(lr=1e-3, betas=[0.9, 0.99], _why="x"))
    assert not found("DSC603", optimizer("Muon", lr=1e-3, momentum=0.9))


def test_torch_argument_is_accepted_by_dsengine_only() -> None:
    config = {"train_batch_size": 8, **optimizer(lr=1e-3, foreach=True)}
    [finding] = found("DSC603", config)
    assert set(finding.runtimes) == {"deepspeed", "transformers", "accelerate"}
    alone = dsconfig.validate(config, runtime="dsengine").diagnostics
    assert "DSC603" not in {each.code for each in alone}


@pytest.mark.parametrize(
    ("offload", "optimizer_type", "message"),
    [
        ({"device": "none"}, "AdamW", "device is none"),
        ({"device": "cpu"}, "Lion", "requires Adam"),
        ({"device": "cpu"}, "RAdam", "requires Adam"),
        ({"device": "cpu"}, "AdamW", None),
        ({"device": "cpu"}, "Adam", None),
    ],
)
def test_super_offload_requires_adam(
    offload: dict[str, Any], optimizer_type: str, message: str | None
) -> None:
    """``superoffload_stage3.py`` reads ``amsgrad`` of every group: KeyError without it."""
    zero = {"stage": 3, "offload_optimizer": {**offload, "super_offload": True}}
    config = {"zero_optimization": zero, **optimizer(optimizer_type, lr=1e-3)}
    findings = found("DSC438", config)
    assert [each.effect.value for each in findings] == ([] if message is None else [REFUSED])
    assert message is None or (message in findings[0].message and findings[0].late)


def test_muon_ignores_unknown_arguments() -> None:
    [finding] = found("DSC603", optimizer("Muon", lr=1e-3, zzz=1))
    assert finding.effect.value == ALTERED and "silently ignores it" in finding.message


@pytest.mark.parametrize(
    ("name", "value", "effect"),
    [
        ("lr", "x", REFUSED),
        ("lr", True, ALTERED),
        ("weight_decay", "0.1", REFUSED),
        ("amsgrad", "yes", ALTERED),
        ("foreach", None, None),
    ],
)
def test_invalid_optimizer_argument_effect(name: str, value: Any, effect: str | None) -> None:
    findings = found("DSC604", optimizer(**{name: value}))
    assert [each.effect.value for each in findings] == ([effect] if effect else [])
    for each in findings:
        assert each.pointer == f"/optimizer/params/{name}"
        assert each.message.startswith(f"optimizer.params.{name} is {json.dumps(value)}, but must")


def test_optimizer_states_offloaded_by_two_keys_are_reported() -> None:
    compiled = {"compile": {"deepcompile": True, "offload_opt_states": True}}
    for device, number in (("none", 0), ("cpu", 1)):
        zero = {"stage": 3, "offload_optimizer": {"device": device}}
        assert len(found("DSC471", {**compiled, "zero_optimization": zero})) == number
    assert not found("DSC471", {**compiled, "zero_optimization": {"stage": 3}})


def test_auto_message_names_default() -> None:
    [finding] = found("DSC102", {"fp16": {"enabled": True, "loss_scale_window": "auto"}})
    assert finding.effect.value == INERT and finding.message.endswith("uses the default 1000")
    zero = {"stage": 2, "reduce_bucket_size": "auto"}
    [finding] = found("DSC103", {"zero_optimization": zero})
    assert finding.effect.value == NOTE and finding.message.endswith("uses the default 500000000")


@pytest.mark.parametrize(("size", "advice"), [(200_000_000, "12000000"), (124_439_808, None)])
def test_bucket_larger_than_model_suggests_a_tenth(size: int, advice: str | None) -> None:
    facts = gather(gpus=2, model="gpt2")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": size, "allgather_bucket_size": 1},
    }
    report = dsconfig.validate(config, facts)
    helps = [each.help for each in report.diagnostics if each.code == "DSC501"]
    assert helps == ([f"write about a tenth of the model size: {advice}"] if advice else [])
