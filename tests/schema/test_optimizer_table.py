"""The optimizer table agrees with torch, the engine and DeepSpeed."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig import Facts, ModelTree, Status
from dsconfig.cost.optimizers import optimizer_cost
from dsconfig.planner.coverage.cover import coverage, rule_of
from dsconfig.runtimes.built import arguments_of, optimizer_built
from dsconfig.runtimes.deepspeed import deepspeed
from dsconfig.runtimes.effective import Named, effective
from dsconfig.schema import NEWEST, Version, find
from dsconfig.schema.catalogue import blocks_of
from dsconfig.schema.installed import installed_or_newest
from dsconfig.schema.optimizers import OPTIMIZER_CLASSES, OPTIMIZERS, OWN, optimizer_type
from dsconfig.schema.schedules import SCHEDULES

ORACLE = Path(__file__).parents[1] / "oracle"
RUN = sorted(name for name, each in OPTIMIZERS.items() if each.in_engine)
HISTORY = {row["path"]: row for row in json.loads((ORACLE / "key_history.json").read_text())}
CHANGES = HISTORY["optimizer.type"]["builtin_values_changes"]
"""Names that DeepSpeed's source lists, by the release that changed the list."""


def declared(name: str) -> Mapping[str, Any]:
    params = find(["optimizer", "params"])
    assert params is not None
    (owner,) = blocks_of(params.shape, name)
    return owner.model_fields


def test_own_names_follow_releases() -> None:
    alive: set[str] = set()
    for change in CHANGES:
        alive |= set(change.get("values", change.get("added", [])))
        alive -= set(change.get("removed", []))
        release = Version.parse(change["version"])
        ours = {name.lower() for name in OWN if OPTIMIZERS[name].is_own_at(release)}
        assert ours == alive - {"deepspeed_adam"}, release  # an alias of 0.3.0 alone


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_classes_of_types_are_in_table(name: str) -> None:
    each = OPTIMIZERS[name]
    ours = {each.class_in_engine(params) for params in ({}, {"adam_w_mode": False})} - {None}
    theirs = {
        each.class_in_deepspeed(params, offloaded=offloaded)
        for params in ({}, {"torch_adam": True}, {"torch_adam": True, "adam_w_mode": False})
        for offloaded in (False, True)
    }
    assert ours | theirs <= OPTIMIZER_CLASSES.keys()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_argument_classes_belong_to_type(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    possible = {
        optimizer.on_device,
        optimizer.on_host,
        "torch.Adam",
        "torch.AdamW",
        optimizer.in_engine,
    }
    for argument, field in declared(name).items():
        accepting = set(field.json_schema_extra.taken_by)
        assert accepting <= possible, argument
        if argument != "max_grad_norm":
            classes = accepting or {optimizer.on_device}
            accepted = [arguments_of(name, arguments) for arguments in classes]
            assert any(arguments is None or argument in arguments for arguments in accepted)


@pytest.mark.parametrize(
    ("name", "mode", "built"),
    [
        ("Adam", True, "torch.AdamW"),
        ("Adam", False, "torch.Adam"),
        ("AdamW", True, "torch.AdamW"),
        ("AdamW", False, "torch.AdamW"),
    ],
)
def test_adamw_is_decoupled_for_any_adam_w_mode(name: str, mode: bool, built: str) -> None:
    params = {"torch_adam": True, "adam_w_mode": mode}
    optimizer = optimizer_built(name, params, NEWEST, offloaded=False)
    assert optimizer is not None and optimizer.kind.name == built


RELEASES = ("0.3.0", "0.5.4", "0.5.5", "0.10.1", "0.11.0", "0.16.4", "0.17.6", "0.19.6", "0.19.8")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", [*OPTIMIZERS, "AdamWW", "Optimizer", "adagrad", "sgd"])
def test_rules_replay_and_table_agree_on_known_optimizers(name: str, release: str) -> None:
    version = Version.parse(release)
    config = {"train_batch_size": 8, "optimizer": {"type": name}}
    known = optimizer_built(name, {}, version, offloaded=False) is not None
    runtime = deepspeed(version)
    report = dsconfig.validate(config, Facts(world_size=1), runtime=runtime, version=version)
    is_reported = any(finding.code == "DSC601" for finding in report.diagnostics)
    resolution = dsconfig.resolve(config, Facts(world_size=1), runtime=runtime)
    is_refused = any(
        finding.effect == "refused" and finding.pointer == "/optimizer/type"
        for finding in resolution.diagnostics
    )
    assert (is_reported, is_refused) == (not known, not known)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("release", ["0.3.0", "0.12.2", "0.12.3"])
def test_rules_and_table_agree_on_known_schedules(name: str, release: str) -> None:
    version = Version.parse(release)
    config = {"train_batch_size": 8, "scheduler": {"type": name, "params": {}}}
    report = dsconfig.validate(config, Facts(world_size=1), version=version)
    is_reported = any(finding.code == "DSC631" for finding in report.diagnostics)
    assert is_reported is not SCHEDULES[name].is_known_at(version)


def status_of(config: dict[str, Any], pointer: str) -> Status:
    rows = coverage(effective(config, Facts(world_size=2)))
    return next(row.status for row in rows if row.pointer == pointer)


@pytest.mark.parametrize("stage", [0, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_honoured_types_are_built_by_engine(name: str, stage: int) -> None:
    torch = pytest.importorskip("torch")
    from dsengine.optimizers import build_optimizer, is_muon, split_for_muon
    from dsengine.optimizers.binding import check_supported

    groups: Any = [{"params": [torch.nn.Parameter(torch.zeros(4, 4))]}]
    status = status_of(
        {"optimizer": {"type": name}, "zero_optimization": {"stage": stage}}, "/optimizer/type"
    )
    try:
        built = build_optimizer(
            name, {}, split_for_muon(groups, {}, {}) if is_muon(name) else groups
        )
        check_supported(built, sharded=stage > 0)
    except ValueError:
        assert status is Status.REFUSED
    else:
        assert status is Status.HONOURED


REQUIRED_ARGUMENTS = {"decoupled_weight_decay": {"adam_w_mode": False}}
"""Arguments that another argument requires."""


@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name in RUN for argument in declared(name)]
)
def test_honoured_arguments_are_accepted_by_engine(name: str, argument: str) -> None:
    torch = pytest.importorskip("torch")
    from dsengine.optimizers import build_optimizer, is_muon, split_for_muon

    default = declared(name)[argument].default
    params = {argument: 0.1 if default is None and argument.endswith("lr") else default}
    params |= REQUIRED_ARGUMENTS.get(argument, {})
    config = {"optimizer": {"type": name, "params": params}}
    status = status_of(config, f"/optimizer/params/{argument}")
    groups: Any = [{"params": [torch.nn.Parameter(torch.zeros(4, 4))]}]
    try:
        build_optimizer(
            name, params, split_for_muon(groups, params, {}) if is_muon(name) else groups
        )
    except ValueError:
        assert status is Status.REFUSED
    else:
        # Some arguments of Muon only affect DeepSpeed's own kernel; dsengine ignores them.
        assert status is not Status.REFUSED or is_muon(name) or name == "LBFGS"


WITH_MORE_STATES = [
    (name, {argument: 0.9 if argument == "momentum" else True})
    for name in RUN
    for argument in OPTIMIZER_CLASSES[OPTIMIZERS[name].in_engine or ""].states_with
]


@pytest.mark.parametrize(
    ("name", "params"), [*((name, {}) for name in RUN if name != "LBFGS"), *WITH_MORE_STATES]
)
def test_state_bytes_equal_engine_allocation(name: str, params: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    from dsengine.optimizers import build_optimizer, is_muon, split_for_muon

    weight = torch.nn.Parameter(torch.ones(64, 64))
    groups: Any = [{"params": [weight]}]
    built = build_optimizer(
        name, params, split_for_muon(groups, params, {weight: "w"}) if is_muon(name) else groups
    )
    gradient = torch.ones(64, 64)
    weight.grad = gradient.to_sparse() if name == "SparseAdam" else gradient
    eager = bool(built.state)
    built.step()
    states = {
        key
        for key, value in built.state[weight].items()
        if isinstance(value, torch.Tensor) and value.shape == weight.shape
    }
    kind = optimizer_type(name)
    assert kind is not None
    ours = OPTIMIZER_CLASSES[kind.class_in_engine(params) or ""]
    assert states == set(ours.states_for(params))
    assert eager is ours.is_eager
    allocated = sum(
        value.nbytes
        for value in built.state[weight].values()
        if isinstance(value, torch.Tensor) and value.dim() > 0
    )
    cost = optimizer_cost(Named(type=name, params=params), in_engine=True)
    # Adafactor's row and column factors are negligible at usual model widths.
    slack = 0.05 * weight.nbytes if name == "Adafactor" else 0
    assert abs(cost.state_bytes(weight.numel(), weight.itemsize) - allocated) <= slack


def test_elementwise_classes_step_equally_in_slices() -> None:
    torch = pytest.importorskip("torch")
    from dsengine.optimizers.build import OWN

    for name in RUN:
        kind = OPTIMIZER_CLASSES[OPTIMIZERS[name].in_engine or ""]
        if kind.needs_closure or kind.needs_sparse or name == "Muon":
            continue
        cls = OWN.get(name) or getattr(torch.optim, name)
        torch.manual_seed(0)
        start, gradients = torch.randn(8, 4), [torch.randn(8, 4) for _ in range(3)]
        full, parts = start.clone(), [start[:3].clone(), start[3:].clone()]
        unsplit, split = cls([full], lr=0.1), [cls([part], lr=0.1) for part in parts]
        for gradient in gradients:
            full.grad, parts[0].grad, parts[1].grad = gradient, gradient[:3], gradient[3:]
            for optimizer in (unsplit, *split):
                optimizer.step()
        assert torch.allclose(full, torch.cat(parts)) is kind.is_elementwise, name


def test_every_argument_has_a_coverage_rule() -> None:
    for name in OPTIMIZERS:
        for argument in declared(name):
            assert rule_of(f"optimizer.params.{argument}") is not None


def test_amsgrad_adds_third_moment() -> None:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }
    facts = Facts(world_size=1, model=ModelTree(name="m", parameters=10**8, trainable=10**8))
    moments: list[int] = []
    for amsgrad in (False, True):
        config["optimizer"]["params"]["amsgrad"] = amsgrad
        estimate = dsconfig.estimate(dsconfig.resolve(config, facts), facts)
        parts = estimate.options[0].device.components
        moments.append(sum(part.bytes for part in parts if part.name == "optimizer state"))
    assert moments == [8 * 10**8, 12 * 10**8]


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(installed_or_newest() < NEWEST, reason=f"needs DeepSpeed {NEWEST}")
@pytest.mark.parametrize(
    ("name", "class_name", "module"),
    [
        ("AdamW", "FusedAdam", "adam"),
        ("AdamW", "DeepSpeedCPUAdam", "adam"),
        ("Lion", "FusedLion", "lion"),
        ("Lion", "DeepSpeedCPULion", "lion"),
        ("Lamb", "FusedLamb", "lamb"),
        ("Adagrad", "DeepSpeedCPUAdagrad", "adagrad"),
    ],
)
def test_class_arguments_equal_deepspeed(name: str, class_name: str, module: str) -> None:
    from importlib import import_module

    kind = getattr(import_module(f"deepspeed.ops.{module}"), class_name)
    theirs = set(inspect.signature(kind.__init__).parameters)
    theirs -= {"self", "params", "model_params", "max_grad_norm", "adamw_mode"}
    ours = arguments_of(name, class_name)
    assert ours is not None
    read_before = {"torch_adam", "adam_w_mode", "fp32_optimizer_states"}
    assert ours - read_before == theirs - read_before


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(installed_or_newest() < NEWEST, reason=f"needs DeepSpeed {NEWEST}")
def test_tested_classes_equal_deepspeed() -> None:
    from deepspeed.runtime.zero import utils

    class _Own: ...

    utils.is_zero_supported_optimizer.__globals__["dist"].get_rank = lambda: 1
    utils.is_zero_supported_optimizer(_Own())
    theirs = {kind.__name__ for kind in utils.ZERO_SUPPORTED_OPTIMIZERS}
    ours = {
        kind.name.removeprefix("torch.") for kind in OPTIMIZER_CLASSES.values() if kind.is_tested
    }
    assert ours == theirs


@pytest.mark.parametrize("name", ["Lion", "Muon"])
def test_own_optimizer_step_returns_closure_result(name: str) -> None:
    torch = pytest.importorskip("torch")
    from dsengine.optimizers import build_optimizer, split_for_muon

    groups: Any = [{"params": [torch.nn.Parameter(torch.ones(4, 4))]}]
    built = build_optimizer(name, {}, split_for_muon(groups, {}, {}) if name == "Muon" else groups)
    assert built.step(lambda: 0.5) == 0.5
