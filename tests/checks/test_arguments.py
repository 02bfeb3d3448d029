"""What rules say of an optimizer's arguments, of values and of "auto": words, remedy and fix."""

import json
from typing import Any

import pytest

import dsconfig
from dsconfig.facts import gather

REFUSED, ALTERED, INERT, NOTE = "refused", "altered", "inert", "note"


def found(code: str, config: dict[str, Any]) -> list[dsconfig.Diagnostic]:
    document = dsconfig.read(json.dumps({"train_batch_size": 8, **config}))
    report = dsconfig.validate(document, gather(world_size=1))
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
def test_an_unknown_argument_is_renamed_where_it_can_be(
    params: dict[str, Any], help: str, renamed: str | None
) -> None:
    [said] = found("DSC603", optimizer(**params))
    assert (said.effect.value, said.help) == (REFUSED, help)
    edits = [edit.content for edit in said.fix.edits] if said.fix else [None]
    assert edits == [renamed]


def test_known_arguments_and_comments_are_no_findings() -> None:
    assert not found("DSC603", optimizer(lr=1e-3, betas=[0.9, 0.99], _why="x"))
    assert not found("DSC603", optimizer("Muon", lr=1e-3, momentum=0.9))


def test_an_argument_of_torch_is_refused_where_deepspeed_builds_its_own_class() -> None:
    config = {"train_batch_size": 8, **optimizer(lr=1e-3, foreach=True)}
    [said] = found("DSC603", config)
    assert set(said.runtimes) == {"deepspeed", "transformers", "accelerate"}
    alone = dsconfig.validate(config, runtime="dsengine").diagnostics
    assert "DSC603" not in {each.code for each in alone}


@pytest.mark.parametrize(
    ("offload", "optimizer_type", "said"),
    [
        ({"device": "none"}, "AdamW", "device is none"),
        ({"device": "cpu"}, "Lion", "updates with a CPU Adam"),
        ({"device": "cpu"}, "RAdam", "updates with a CPU Adam"),
        ({"device": "cpu"}, "AdamW", None),
        ({"device": "cpu"}, "Adam", None),
    ],
)
def test_super_offload_steps_with_a_cpu_adam(
    offload: dict[str, Any], optimizer_type: str, said: str | None
) -> None:
    """``superoffload_stage3.py`` takes ``amsgrad`` out of every group: KeyError without one."""
    zero = {"stage": 3, "offload_optimizer": {**offload, "super_offload": True}}
    config = {"zero_optimization": zero, **optimizer(optimizer_type, lr=1e-3)}
    told = found("DSC438", config)
    assert [each.effect.value for each in told] == ([] if said is None else [REFUSED])
    assert said is None or (said in told[0].message and told[0].late)


def test_muon_drops_what_it_does_not_know() -> None:
    [said] = found("DSC603", optimizer("Muon", lr=1e-3, zzz=1))
    assert said.effect.value == ALTERED and "drops it without a word" in said.message


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
def test_a_wrong_value_stops_only_where_it_is_compared(
    name: str, value: Any, effect: str | None
) -> None:
    said = found("DSC604", optimizer(**{name: value}))
    assert [each.effect.value for each in said] == ([effect] if effect else [])
    for each in said:
        assert each.pointer == f"/optimizer/params/{name}"
        assert each.message.startswith(f"optimizer.params.{name} is {json.dumps(value)}, and must")


def test_states_are_offloaded_twice_only_by_two_keys() -> None:
    compiled = {"compile": {"deepcompile": True, "offload_opt_states": True}}
    for device, number in (("none", 0), ("cpu", 1)):
        zero = {"stage": 3, "offload_optimizer": {"device": device}}
        assert len(found("DSC471", {**compiled, "zero_optimization": zero})) == number
    assert not found("DSC471", {**compiled, "zero_optimization": {"stage": 3}})


def test_an_auto_that_becomes_the_default_is_told_with_the_default() -> None:
    [said] = found("DSC102", {"fp16": {"enabled": True, "loss_scale_window": "auto"}})
    assert said.effect.value == INERT and said.message.endswith("uses the default 1000")
    zero = {"stage": 2, "reduce_bucket_size": "auto"}
    [said] = found("DSC103", {"zero_optimization": zero})
    assert said.effect.value == NOTE and said.message.endswith("uses the default 500000000")


@pytest.mark.parametrize(("size", "advice"), [(200_000_000, "12000000"), (124_439_808, None)])
def test_a_bucket_larger_than_the_model(size: int, advice: str | None) -> None:
    facts = gather(world_size=2, model="gpt2")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": size, "allgather_bucket_size": 1},
    }
    report = dsconfig.validate(config, facts)
    said = [each.help for each in report.diagnostics if each.code == "DSC501"]
    assert said == ([f"write about a tenth of the model, {advice}"] if advice else [])
