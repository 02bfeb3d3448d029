"""Plan files: equal after a round trip, rejected if edited."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsconfig
from dsconfig import ModelTree, Plan, PlannedStage
from dsconfig.facts import gather
from dsconfig.planner.build import PlanError
from dsconfig.planner.plan import is_plan
from dsconfig.schema import Version
from property_settings import without_health_checks
from resolver.strategies import configs, wide, worlds

BASE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": (0.9, 0.95)}},
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True},
}
RELEASES = ("0.10.3", "0.14.5", "0.16.4", "0.17.6", "0.18.9", "0.19.8")
MORE = st.fixed_dictionaries(
    {},
    optional={
        "wandb": st.just({"enabled": True, "project": "p"}),
        "flops_profiler": st.just({"enabled": True}),
        "comms_logger": st.just({"enabled": True}),
        "aio": st.just({"block_size": 1048576}),
        "checkpoint": st.just({"use_node_local_storage": True}),
        "steps_per_print": st.sampled_from([1, 2000]),
        "data_types": st.just({"grad_accum_dtype": "fp32"}),
        "torch_autocast": st.just({"enabled": True, "dtype": "torch.float16"}),
    },
)


def planned(config: dict[str, Any], version: str | None = None, **world: Any) -> Plan:
    facts = gather(**{"gpus": 8, **world})
    return dsconfig.plan(dsconfig.resolve(config, facts, version=version), facts)


MODELS = st.sampled_from(["gpt2", "llama-3.2-1b", wide(12_032)])


@pytest.mark.parametrize("examples", [60, pytest.param(1000, marks=pytest.mark.deep)])
def test_plan_round_trip(examples: int) -> None:
    unplanned: list[str] = []

    @without_health_checks(examples)
    @given(configs(), MORE, worlds(), MODELS, st.sampled_from(RELEASES), st.integers(1, 2))
    def reads_back(
        config: dict[str, Any],
        more: dict[str, Any],
        world: dict[str, Any],
        model: str | ModelTree,
        version: str,
        nodes: int,
    ) -> None:
        facts = gather(**{**world, "model": model}, nodes=min(nodes, world["gpus"]))
        resolution = dsconfig.resolve(config | more, facts, version=version)
        try:
            plan = dsconfig.plan(resolution, facts)
        except PlanError as error:
            unplanned.append(str(error))
            return
        again = Plan.from_json(plan.to_json())
        assert again == plan
        assert again.to_json() == plan.to_json()
        assert again.digest == plan.digest

    reads_back()
    assert len(unplanned) < examples // 3, "most of those configs can be planned"


@pytest.mark.parametrize(
    "more",
    [
        {"gradient_clipping": float("inf")},
        {"_note": 10**30},
        {"_note": {"\ud800": [(1, 2), None]}},
        {"wandb": {"enabled": True, "project": "\ud800\u00e9"}},
        {"csv_monitor": {"enabled": True, "output_path": Path("/tmp/x")}},
        {"_note": {3, 4}, "_of": object, 5: Fraction(1, 3)},
        {"_note": numpy.int64(3), "_of": numpy.float32(0.5)},
    ],
    ids=[
        *("infinity", "beyond 64 bits", "a lone surrogate as key", "as value"),
        *("a path", "what JSON has not", "numpy"),
    ],
)
def test_unusual_values_round_trip(more: dict[str, Any]) -> None:
    plan = planned(BASE | more)
    assert Plan.from_json(plan.to_json()) == plan


def test_release_round_trip() -> None:
    plan = Plan.from_json(planned(BASE, "0.16.4").to_json())
    assert plan.release == "0.16.4"
    assert plan.effective.gradients.clipping == 0.0
    assert planned(BASE, "0.19.8").effective.gradients.clipping == 1.0


def test_nodes_round_trip() -> None:
    for nodes in (1, 2):
        assert Plan.from_json(planned(BASE, nodes=nodes).to_json()).nodes == nodes


def test_digest_covers_every_decision() -> None:
    plans = [
        planned(BASE),
        planned(BASE, "0.16.4"),
        planned(BASE, gpus=4),
        planned(BASE, nodes=2),
        planned(BASE | {"gradient_clipping": 0.5}),
        planned(BASE, model="gpt2"),
    ]
    assert len({plan.digest for plan in plans}) == len(plans)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("stage",), 2),
        (("effective", "zero", "stage"), 2),
        (("effective", "gradients", "clipping"), 0.5),
        (("mesh", "shard"), 4),
        (("mesh", "world_size"), 4),
        (("stages", 0, "units"), []),
        (("coverage", 0, "status"), "inert"),
    ],
)
def test_edited_plan_is_rejected(place: tuple[Any, ...], value: Any) -> None:
    data = json.loads(planned(BASE, model="gpt2").to_json())
    with pytest.raises(ValueError, match="the plan was edited or created by another release"):
        Plan.from_json(edited(data, place, value))


def edited(data: Any, place: tuple[Any, ...], value: Any) -> str:
    """Return the plan as JSON text with one value replaced."""
    *around, last = place
    inner = data
    for step in around:
        inner = inner[step]
    assert inner[last] != value
    inner[last] = value
    return json.dumps(data)


def test_incomplete_plan_is_rejected_with_location() -> None:
    data = json.loads(planned(BASE).to_json())
    del data["effective"]["batch"]
    with pytest.raises(ValueError, match=r"incomplete plan: effective\.batch"):
        Plan.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format_version": "4.0"}'])
def test_non_plan_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="plan"):
        Plan.from_json(text)


@pytest.mark.parametrize("version", ["1.0", "2.0", "3.0"])
def test_unsupported_plan_format_is_rejected(version: str) -> None:
    with pytest.raises(ValueError, match=rf"format {version} is not supported \(expected 4.0\)"):
        Plan.from_json(json.dumps({"format_version": version}))


def test_config_is_not_a_plan() -> None:
    assert not is_plan('{"train_batch_size": 8}')
    assert not is_plan("{train_batch_size: 8}")
    assert is_plan(planned(BASE).to_json())


def test_complete_adds_only_model_fields() -> None:
    bare = planned(BASE)
    facts = gather(gpus=8, model="gpt2")
    assert (bare.stages, bare.model, bare.memory, bare.traffic) == ((PlannedStage(),), None, {}, {})
    assert dsconfig.complete(bare, facts) == planned(BASE, model="gpt2")
    complete = planned(BASE, model="gpt2")
    assert dsconfig.complete(complete, facts) is complete


def test_complete_keeps_release_defaults() -> None:
    old = dsconfig.complete(planned(BASE, "0.16.4"), gather(gpus=8, model="gpt2"))
    assert old == planned(BASE, "0.16.4", model="gpt2")
    assert old.effective.gradients.clipping == 0.0


def test_complete_rejects_another_model() -> None:
    with pytest.raises(PlanError, match=r"another model: gpt2 has 124,439,808 .* plan again"):
        dsconfig.complete(planned(BASE, model="gpt2"), gather(gpus=8, model="gpt2-xl"))


def test_release_must_exist() -> None:
    assert Version.parse(planned(BASE).release) == Version.parse("0.19.8")
