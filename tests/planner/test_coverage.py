"""Coverage: every key is honoured, inert or refused, with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig import Facts, Status
from dsconfig.commands.plan_tables import coverage_lines
from dsconfig.planner.capabilities import live_paths
from dsconfig.planner.coverage import cover
from dsconfig.planner.coverage.cover import coverage, rule_of
from dsconfig.planner.coverage.page import page
from dsconfig.runtimes.effective import effective
from dsconfig.schema import Key, keys

ROOT = Path(__file__).parents[2]


def fate(config: dict[str, Any]) -> dict[str, tuple[Status, str]]:
    rows = coverage(effective(config, Facts(world_size=2)))
    return {row.pointer: (row.status, row.by) for row in rows}


@pytest.mark.parametrize("path", live_paths())
def test_every_live_key_has_a_rule(path: str) -> None:
    rule = rule_of(path)
    assert rule is not None
    assert rule[-1].when is None, "the last case must always hold"
    assert all(case.by for case in rule)


def test_rows_are_in_config_order() -> None:
    config = json.loads((ROOT / "examples" / "classifier_bf16.json").read_text())
    pointers = list(fate(config))
    assert pointers[:3] == [
        "/train_micro_batch_size_per_gpu",
        "/gradient_accumulation_steps",
        "/optimizer/type",
    ]


def test_classifier_config_is_honoured_or_explained() -> None:
    config = json.loads((ROOT / "examples" / "classifier_bf16.json").read_text())
    assert Status.REFUSED not in {status for status, _ in fate(config).values()}


def test_stage_3_key_below_stage_3_is_inert() -> None:
    config = {"zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 1}}
    status, why = fate(config)["/zero_optimization/stage3_prefetch_bucket_size"]
    assert status is Status.INERT
    assert "below stage 3" in why


@pytest.mark.parametrize(
    ("block", "feature", "key"),
    [
        ("data_sampling", "curriculum_learning", "data_cluster_path"),
        ("data_sampling", "dynamic_batching", "max_tokens"),
        ("data_routing", "random_ltd", "total_layer_num"),
    ],
)
def test_data_efficiency_is_refused_by_feature(block: str, feature: str, key: str) -> None:
    def handled(*, on: bool) -> set[Status]:
        features = {"enabled": True, feature: {"enabled": on, key: 1}}
        found = fate({"data_efficiency": {"enabled": True, block: features}})
        assert found["/data_efficiency/enabled"][0] is Status.INERT
        prefix = f"/data_efficiency/{block}/{feature}/"
        return {status for pointer, (status, _) in found.items() if pointer.startswith(prefix)}

    assert handled(on=False) == {Status.INERT}
    assert handled(on=True) == {Status.REFUSED}


def test_unsupported_feature_is_inert_if_off() -> None:
    off = fate({"hybrid_engine": {"enabled": False, "max_out_tokens": 512}})
    assert {status for status, _ in off.values()} == {Status.HONOURED, Status.INERT}
    on = fate({"nebula": {"enabled": True}})
    assert on["/nebula/enabled"][0] is Status.REFUSED


def test_deepcompile_is_inert_except_its_parallel_passes() -> None:
    inert_keys = {"deepcompile": True, "offload_activation": True, "passes": ["z1", "z3"]}
    assert {status for status, _ in fate({"compile": inert_keys}).values()} == {
        *({status for status, _ in fate({}).values()}),
        Status.INERT,
    }
    for name in ("autosp", "autotp"):
        covered = fate({"compile": {"deepcompile": True, "passes": ["z3", name]}})
        assert covered["/compile/passes"][0] is Status.REFUSED
        assert covered["/compile/deepcompile"][0] is Status.INERT


def test_hybrid_engine_generates_with_the_engine() -> None:
    keys = {"enabled": True, "max_out_tokens": 512, "inference_tp_size": 8, "pin_parameters": False}
    covered = fate({"hybrid_engine": keys})
    assert {covered[f"/hybrid_engine/{key}"][0] for key in keys} == {Status.INERT}


def test_tensor_parallel_degree_one_is_inert() -> None:
    fates = [
        fate({"tensor_parallel": {"autotp_size": size, "vocab_parallel_lm_head": True}})
        for size in (0, 1, 2)
    ]
    key = "/tensor_parallel/vocab_parallel_lm_head"
    assert fates[0][key][0] is fates[1][key][0] is Status.INERT
    assert fates[2][key][0] is Status.HONOURED
    assert fates[2]["/tensor_parallel/autotp_size"][0] is Status.HONOURED


@pytest.mark.parametrize(
    ("block", "status"),
    [
        ({"preset_model": "llama"}, Status.HONOURED),
        ({"preset_model": "bloom"}, Status.HONOURED),
        ({"partition_config": {"strict_mode": True}}, Status.HONOURED),
        ({"tp_overlap_comm": True}, Status.INERT),
        ({"vocab_parallel_lm_head": False}, Status.HONOURED),
    ],
)
def test_keys_of_split_layers(block: dict[str, Any], status: Status) -> None:
    rows = fate({"tensor_parallel": {"autotp_size": 2, **block}})
    assert [row for key, (row, _) in rows.items() if not key.endswith("autotp_size")] == [status]


@pytest.mark.parametrize("key", ["no_such_key", "optimizer.params.lr"])
def test_unknown_key_is_inert(key: str) -> None:
    """Frameworks write such keys, dotted ones among them; DSC021 says so."""
    status, by = fate({key: 1})[f"/{key}"]
    assert status is Status.INERT and "not read by DeepSpeed" in by


def test_rule_is_found_without_a_search_of_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unlisted(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("all rules are searched")

    monkeypatch.setattr(cover, "RULES", Unlisted(cover.RULES))
    found = cover.rule_of.__wrapped__
    assert found("unknown") is found("zero_optimization.unknown") is found("zero") is None
    assert found("timers") is found("flops_profiler") is cover.EMPTY_BLOCK


def test_annotations_are_inert() -> None:
    config = {"$schema": "x", "_comment": "y", "$dsconfig": {"ignore": []}}
    assert {status for status, _ in fate(config).values()} == {Status.INERT}


@pytest.mark.parametrize("name", ["OneBitAdam", "MuAdam"])
def test_unsupported_optimizers_are_refused(name: str) -> None:
    status, why = fate({"optimizer": {"type": name}})["/optimizer/type"]
    assert status is Status.REFUSED
    assert "use AdamW" in why or "pass your own" in why


def test_node_local_checkpoints_on_several_nodes_are_refused() -> None:
    config = {"checkpoint": {"use_node_local_storage": True}}
    by_nodes = {
        nodes: coverage(effective(config, Facts(world_size=16, nodes=nodes)))[0] for nodes in (1, 2)
    }
    assert by_nodes[1].status is Status.INERT
    assert by_nodes[2].status is Status.REFUSED
    assert "save to shared storage" in by_nodes[2].by


@pytest.mark.parametrize(
    ("optimizer", "zero", "words"),
    [
        ("LBFGS", {}, "several times per step"),
        ("SparseAdam", {"stage": 1}, "stage 0 with sparse embeddings"),
        ("Adafactor", {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "optimizer offload"),
        ("SparseAdam", {}, ""),
        ("Adafactor", {"stage": 3}, ""),
        ("Lion", {"stage": 3}, ""),
    ],
)
def test_unsupported_optimizer_combinations_are_refused(
    optimizer: str, zero: dict[str, object], words: str
) -> None:
    config = {"optimizer": {"type": optimizer}, "zero_optimization": zero}
    status, why = fate(config)["/optimizer/type"]
    assert status is (Status.REFUSED if words else Status.HONOURED)
    assert words in why


@pytest.mark.parametrize(
    ("block", "status"),
    [
        ({"tensor_parallel": {"autotp_size": 2}}, Status.REFUSED),
        ({"expert_parallel": {"enabled": True, "autoep_size": 2}}, Status.REFUSED),
        ({"expert_parallel": {"enabled": False, "autoep_size": 2}}, Status.HONOURED),
        ({"tensor_parallel": {"autotp_size": 1}}, Status.HONOURED),
    ],
)
def test_adafactor_is_refused_with_split_weights(block: dict[str, Any], status: Status) -> None:
    found = fate({"optimizer": {"type": "Adafactor"}, **block})["/optimizer/type"]
    assert found[0] is status


def test_every_leaf_has_a_row() -> None:
    settled = effective({"bf16": {"enabled": True}, "zero_optimization": {}})
    assert [row.pointer for row in coverage(settled)] == ["/bf16/enabled", "/zero_optimization"]


@pytest.mark.parametrize("key", [key for key in keys() if key.aliases], ids=lambda key: key.path)
def test_alias_is_handled_like_its_key(key: Key) -> None:
    block = key.path.rpartition(".")[0]
    value = {} if key.is_block else key.default
    around = {"stage": 3} if block == "zero_optimization" else {}
    own, *others = (
        fate({block: {**around, name: value}}).get(f"/{block}/{name}")
        for name in (key.name, *key.aliases)
    )
    assert own is not None and own[0] is not Status.REFUSED
    assert set(others) == {own}


def honoured_stages(block: str, device: str, key: str, value: object) -> list[int]:
    """The stages at which a key beside ``device`` in an offload block does anything."""
    found = []
    for stage in range(4):
        inside = {"device": device, key: value}
        rows = fate({"zero_optimization": {"stage": stage, block: inside}})
        if rows[f"/zero_optimization/{block}/{key}"][0] is Status.HONOURED:
            found.append(stage)
    return found


@pytest.mark.parametrize(
    ("block", "key", "value", "on_host", "on_nvme"),
    [
        ("offload_optimizer", "pin_memory", True, [1, 2, 3], [1, 2, 3]),
        ("offload_optimizer", "ratio", 0.5, [1, 2, 3], [1, 2, 3]),
        ("offload_optimizer", "buffer_count", 8, [], [1, 2, 3]),
        ("offload_param", "pin_memory", True, [3], [3]),
        ("offload_param", "max_in_cpu", 1000, [], [3]),
    ],
)
def test_offload_keys_are_honoured_by_stage_and_device(
    block: str, key: str, value: object, on_host: list[int], on_nvme: list[int]
) -> None:
    assert honoured_stages(block, "none", key, value) == []
    assert honoured_stages(block, "cpu", key, value) == on_host
    assert honoured_stages(block, "nvme", key, value) == on_nvme


@pytest.mark.parametrize(
    ("block", "device", "expected"),
    [
        ("offload_optimizer", "cpu", Status.INERT),
        ("offload_optimizer", "nvme", Status.HONOURED),
        ("offload_param", "nvme", Status.INERT),
    ],
)
def test_aio_is_honoured_with_optimizer_on_nvme(block: str, device: str, expected: Status) -> None:
    zero = {"stage": 3, block: {"device": device}}
    rows = fate({"zero_optimization": zero, "aio": {"block_size": 4096, "queue_depth": 4}})
    assert rows["/aio/block_size"][0] is rows["/aio/queue_depth"][0] is expected


def test_keys_of_other_precision_are_inert() -> None:
    key = "check_grad_overflow"
    assert fate({"bf16": {"enabled": True, key: True}})[f"/bf16/{key}"][0] is Status.HONOURED
    both = {"bf16": {"enabled": False, key: True}, "fp16": {"enabled": True}}
    assert fate(both)[f"/bf16/{key}"][0] is Status.INERT


@pytest.mark.parametrize(
    ("kind", "stage", "refused"),
    [("SparseAdam", 0, False)] + [("SparseAdam", stage, True) for stage in (1, 2, 3)],
)
def test_combined_conditions(kind: str, stage: int, refused: bool) -> None:
    config = {"optimizer": {"type": kind}, "zero_optimization": {"stage": stage}}
    assert (fate(config)["/optimizer/type"][0] is Status.REFUSED) is refused
    adam = {"optimizer": {"type": "Adam"}, "zero_optimization": {"stage": stage}}
    assert fate(adam)["/optimizer/type"][0] is Status.HONOURED


def test_word_in_tables_is_american_and_json_keeps_its_value() -> None:
    facts = dsconfig.gather(gpus=1)
    plan = dsconfig.plan(dsconfig.resolve(CONFIG_READ, facts), facts)
    assert "honoured" in plan.to_json()
    shown = "\n".join(coverage_lines(plan))
    assert "used     train_batch_size" in shown and "honoured" not in shown + page()


CONFIG_READ = {"train_batch_size": 2}
