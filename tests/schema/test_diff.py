"""``dsconfig diff`` between two files or two releases."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig.comparison.upgrades import ChangeKind, new_defaults, upgrade_changes
from dsconfig.project.pinning import pinned
from dsconfig.schema.meaning import meaning
from dsconfig.schema.paths import MAX_LR, KeyPath
from dsconfig.schema.version import Version
from dsconfig.source import read
from dsconfig.source.pointer import value_at

from .conftest import Run

CORPUS = Path(__file__).parents[1] / "oracle" / "corpus"
VERSIONS, HISTORY = CORPUS.parent / "versions.jsonl", CORPUS.parent / "key_history.json"
OLDER, NEWER = Version(0, 14, 4), Version(0, 19, 8)

OLD = {
    "train_batch_size": 32,
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "zero_optimization": {"stage": 3, "prefetch_bucket_size": 5e7, "cpu_offload": True},
    "optimizer": {"type": "adamw", "params": {"lr": 1e-3}},
}
NEW = {
    "train_batch_size": 32,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(name: str, config: dict[str, Any] | str) -> Path:
        path = tmp_path / name
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return path

    return write


def test_equivalent_configs_have_no_differences(run: Run, file: Any) -> None:
    code, out, _ = run("diff", file("a.json", OLD), file("b.json", NEW))
    assert (code, out) == (0, "no differences in meaning\n")


def test_converted_values_have_the_same_meaning(run: Run, file: Any) -> None:
    text = {"zero_optimization": {"stage": "3", "contiguous_gradients": "yes"}}
    number = {"zero_optimization": {"stage": 3, "contiguous_gradients": True}}
    code, out, _ = run("diff", file("a.json", text), file("b.json", number))
    assert (code, out) == (0, "no differences in meaning\n")


def test_different_configs_list_changes(run: Run, file: Any) -> None:
    other = NEW | {"gradient_clipping": 0.5, "unknown": 1}
    code, out, _ = run("diff", file("a.json", OLD), file("b.json", other))
    assert code == 1
    assert out.splitlines() == [
        "gradient_clipping: 1 -> 0.5  (default in the first)",
        "unknown: unset -> 1  (not read by DeepSpeed)",
    ]


def test_value_set_only_in_first(run: Run, file: Any) -> None:
    _, out, _ = run("diff", file("a.json", OLD | {"steps_per_print": 5}), file("b.json", NEW))
    assert out == "steps_per_print: 5 -> unset\n"


def test_values_that_deepspeed_does_not_read_are_shown(run: Run, file: Any) -> None:
    first, second = NEW | {"notes": ["x"] * 99, "same": 1}, NEW | {"same": 1, "more": {"a": 1}}
    _, out, _ = run("diff", file("a.json", first), file("b.json", second))
    notes, more = out.splitlines()
    assert notes.startswith('notes: ["x", "x"') and notes.endswith(
        "... -> unset  (not read by DeepSpeed)"
    )
    assert more == 'more: unset -> {"a": 1}  (not read by DeepSpeed)'
    changes = dsconfig.diff(first, second)
    assert [change.before for change in changes] == [["x"] * 99, None]


def test_key_that_deepspeed_rejects_is_not_called_unread(run: Run, file: Any) -> None:
    zero = {"zero_optimization": {"stage": 2, "overlap_com": True}}
    same = {"zero_optimization": {"stage": 2}}
    _, out, _ = run("diff", file("a.json", zero), file("b.json", same))
    assert out == "zero_optimization.overlap_com: true -> unset  (rejected by DeepSpeed)\n"


def test_another_stage_lists_its_defaults_and_keys_without_effect() -> None:
    zero = {"stage": 2, "allgather_bucket_size": 2e8}
    first = NEW | {"zero_optimization": zero}
    second = NEW | {"zero_optimization": {**zero, "stage": 3, "stage3_max_live_parameters": 5}}
    assert [str(change) for change in dsconfig.diff(first, second)] == [
        "zero_optimization.stage: 2 -> 3",
        "zero_optimization.allgather_bucket_size: 200000000  (no effect at stage 3)",
        "zero_optimization.stage3_max_live_parameters: 1000000000 -> 5  (default in the first; no "
        "effect at stage 2)",
        "zero_optimization.overlap_comm: false -> true  (default of the stage)",
    ]


def test_target_of_two_files_is_shown(run: Run, file: Any) -> None:
    trainer = file("b.json", NEW | {"train_batch_size": "auto"})
    _, _, err = run("diff", trainer, trainer)
    assert " ".join(err.split()).startswith("target: transformers 5.23 + DeepSpeed")
    _, _, err = run("diff", file("a.json", OLD), trainer)
    first, second = " ".join(err.split()).split("b.json: ")
    assert "a.json: target: DeepSpeed" in first and "target: transformers" in second
    _, _, err = run("diff", file("a.json", OLD), trainer, "--runtime", "dsengine")
    assert err.startswith("target: dsengine")


def test_override_applies_to_the_first_file_only(run: Run, file: Any) -> None:
    both = file("a.json", NEW), file("b.json", NEW)
    _, out, _ = run("diff", *both, "--set", "steps_per_print=5")
    assert out == "steps_per_print: 5 -> unset\n"


def test_project_release_is_the_default_of_to_version(run: Run, file: Any) -> None:
    file("pyproject.toml", '[tool.dsconfig]\ndeepspeed-version = "0.16.4"\n')
    _, _, err = run("diff", file("a.json", NEW), "--from-version", "0.14.4")
    assert "DeepSpeed 0.16.4" in err


def test_for_programs(run: Run, file: Any) -> None:
    changed = NEW | {"gradient_clipping": 0.5}
    _, out, _ = run("diff", file("a.json", OLD), file("b.json", changed), "--output-format", "json")
    data = json.loads(out)
    assert data["format_version"] == "1.0"
    assert [change["pointer"] for change in data["changes"]] == ["/gradient_clipping"]


def changes_by_pointer(run: Run, path: Path, before: str, after: str) -> dict[str, tuple[Any, Any]]:
    arguments = ("--from-version", before, "--to-version", after, "--output-format", "json")
    rows = json.loads(run("diff", path, *arguments)[1])["changes"]
    return {change["pointer"]: (change["before"], change["after"]) for change in rows}


def test_upgrade_changes_unset_defaults(run: Run, file: Any) -> None:
    assert changes_by_pointer(run, file("a.json", NEW), "0.14.4", "0.19.8") == {
        "/gradient_clipping": (0, 1),
        "/steps_per_print": (10, None),
        "/zero_optimization/offload_optimizer/pin_memory": (False, True),
        "/zero_optimization/stage": ("known bug", "fixed"),
    }


def test_default_in_disabled_block_is_ignored(run: Run, file: Any) -> None:
    config = {"train_batch_size": 8, "gradient_clipping": 1.0, "bf16": {"enabled": False}}
    assert "/bf16/check_grad_overflow" not in changes_by_pointer(
        run, file("a.json", config), "0.18.0", "0.19.8"
    )
    config |= {"bf16": {"enabled": True}}
    assert "/bf16/check_grad_overflow" in changes_by_pointer(
        run, file("b.json", config), "0.18.0", "0.19.8"
    )


def test_upgrade_removes_features(run: Run, file: Any) -> None:
    config = {
        "train_batch_size": 8,
        "elasticity": {"enabled": False},
        "seq_parallel_comm_data_type": "fp16",
        "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}},
    }
    listed = changes_by_pointer(run, file("a.json", config), "0.14.4", "0.19.8")
    assert listed["/elasticity"] == ("read", "refused")
    assert "/elasticity/enabled" not in listed
    assert listed["/seq_parallel_comm_data_type"] == ("read", "not read")
    assert listed["/optimizer/type"] == ("accepted", "refused")


def test_upgrade_adds_features(run: Run, file: Any) -> None:
    config = {"train_batch_size": 8, "torch_autocast": {"enabled": True}}
    listed = changes_by_pointer(run, file("a.json", config), "0.14.4", "0.19.8")
    assert listed["/torch_autocast"] == ("not read", "read")
    assert changes_by_pointer(run, file("a.json", config), "0.19.8", "0.14.4")[
        "/torch_autocast"
    ] == (
        "read",
        "not read",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "specify a second file"),
        (("--from-version", "x"), "--from-version: 'x' is not a DeepSpeed version"),
        (("--from-version", "0.2.0"), "'0.2.0' is not a known DeepSpeed release; nearest: 0.3.0"),
        (("--from-version", "0.14", "--output-format", "xml"), "--output-format"),
    ],
)
def test_wrong_usage(run: Run, file: Any, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = run("diff", file("a.json", NEW), *arguments)
    assert code == 2
    assert message in err


def test_unreadable_file_is_not_compared(run: Run, file: Any) -> None:
    code, _, err = run("diff", file("a.json", NEW), file("b.json", "[1, 2"))
    assert code == 2
    assert "b.json" in err


UPGRADED_FILE = """{
  // the team's file
  "train_batch_size": 8,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
  "zero_optimization": {"stage": 2, "cpu_offload": true},
  "fp16": {"enabled": true}, // half
  "seq_parallel_comm_data_type": "fp16",
  "torch_autocast": {"enabled": false}
}
"""
UPGRADE = ("--from-version", "0.14.4", "--to-version", "0.19.8")


def test_upgrade_changes_are_sorted_by_severity(run: Run, file: Any) -> None:
    code, out, _ = run("diff", file("a.json", UPGRADED_FILE), *UPGRADE)
    lines = [line.partition("  (")[0] for line in out.splitlines()]
    assert code == 1
    assert lines == [
        "trains differently: gradients are clipped at norm 1 (were not clipped)",
        "trains differently: peak lr is 0.0003 (was 0.001)",
        "no longer read: seq_parallel_comm_data_type",
        "newly read: torch_autocast",
        "works differently: zero_optimization.offload_optimizer.pin_memory: false -> true",
        "works differently: steps_per_print: 10 -> unset",
    ]


def test_equal_estimates_are_not_a_difference(run: Run, file: Any) -> None:
    same = UPGRADED_FILE.replace("3e-4", "1e-3")
    assert "peak lr" not in run("diff", file("a.json", same), *UPGRADE)[1]


def test_upgrade_lists_fixed_and_new_faults(run: Run, file: Any) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
    }
    path = file("a.json", config)
    upgrade = run("diff", path, "--from-version", "0.17.6", "--to-version", "0.19.8")[1]
    downgrade = run("diff", path, "--from-version", "0.19.8", "--to-version", "0.17.6")[1]
    assert "fixed bug in DeepSpeed: DSC830" in upgrade
    assert "new bug in DeepSpeed: DSC830" in downgrade


def test_pinned_file_keeps_its_meaning(run: Run, file: Any) -> None:
    code, out, err = run("diff", file("a.json", UPGRADED_FILE), *UPGRADE, "--pin")
    assert code == 0
    assert "// the team's file" in out and "// half" in out
    before, later = meaning(read(UPGRADED_FILE).value, OLDER), meaning(read(out).value, NEWER)
    lost = ("seq_parallel_comm_data_type",)
    for path in {*before.settings, *later.settings} - {lost}:
        assert before.value(path) == later.value(path), path
    assert later.value(MAX_LR) == 0.001
    assert (
        err
        == "cannot be kept: no longer read: seq_parallel_comm_data_type  (last read by 0.16.4)\n"
    )


def test_pin_writes_nothing_that_the_release_rejects(run: Run, file: Any, tmp_path: Path) -> None:
    rejected = file("a.json", {"train_batch_size": 8, "zero_optimization": {"no_such_key": 1}})
    target = tmp_path / "pinned.json"
    code, out, err = run("diff", rejected, *UPGRADE, "--pin", "-o", target)
    assert code == 1 and "no_such_key" in out + err
    assert not target.exists()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_pinning_keeps_meaning_of_public_files(path: Path) -> None:
    document = read(path)
    if not isinstance(document.value, dict) or document.is_broken or document.is_template:
        pytest.skip("no config")
    after = pinned(document, OLDER, NEWER)
    assert not after.is_broken
    kinds = {
        change.kind
        for change in upgrade_changes(
            after, OLDER, NEWER, lambda version: dsconfig.validate(after, version=version)
        )
    }
    assert kinds.isdisjoint((ChangeKind.READ,)), kinds
    before, later = meaning(document.value, OLDER), meaning(after.value, NEWER)
    kept = [change for change in new_defaults(before, later) if change.before is not None]
    assert not kept


def rows_loaded_by(*releases: Version) -> list[dict[str, Any]]:
    """Return the recorded configs that every one of these releases loads."""
    rows = map(json.loads, VERSIONS.read_text().splitlines())
    return [row for row in rows if all(_loads(row, release) for release in releases)]


def _loads(row: dict[str, Any], release: Version) -> bool:
    return any(
        span["accept"] and Version.parse(span["from"]) <= release <= Version.parse(span["to"])
        for span in row["ranges"]
    )


def pinned_rows() -> list[tuple[str, dict[str, Any]]]:
    """Return name and pinned config of rows that both releases load and that pinning changes."""
    rows = rows_loaded_by(OLDER, NEWER)
    after = [pinned(read(json.dumps(row["config"])), OLDER, NEWER).value for row in rows]
    changed = [
        (row["id"], new) for row, new in zip(rows, after, strict=True) if new != row["config"]
    ]
    assert len(changed) > 50
    return changed


def test_pinned_config_loads_in_recorded_release() -> None:
    for name, config in pinned_rows():
        report = dsconfig.validate(config, runtime="deepspeed", version=str(NEWER))
        refusals = [
            finding for finding in report.errors if finding.effect == "refused" and not finding.late
        ]
        assert not refusals, (name, refusals)


@pytest.mark.live
def test_real_deepspeed_loads_pinned_config() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    for _, config in pinned_rows():
        DeepSpeedConfig(config)


CHANGED = (
    "gradient_clipping",
    "steps_per_print",
    "bf16.check_grad_overflow",
    "zero_optimization.offload_optimizer.pin_memory",
    "zero_optimization.offload_param.pin_memory",
)
"""Keys that apply to the config below but are unset, and whose default changed after 0.14.4."""


@pytest.mark.parametrize(("older", "written"), [("0.14.4", 4), ("0.18.9", 4), ("0.19.4", 2)])
def test_pinned_values_equal_earlier_sources(older: str, written: int) -> None:
    """Compare with the defaults recorded from DeepSpeed's sources per release."""
    off = {"device": "cpu"}
    zero = {"stage": 3, "offload_optimizer": off, "offload_param": off}
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": zero}
    release = Version.parse(older)
    after = pinned(read(json.dumps(config)), release, NEWER).value
    rows = {row["path"]: row for row in json.loads(HISTORY.read_text())}
    known = [path for path in CHANGED if Version.parse(rows[path]["since"]) <= release]
    before = {
        path: change["from"]
        for path in known
        for change in rows[path]["default_changes"]
        if release < Version.parse(change["version"])
    }
    assert {path: value_at(after, KeyPath.parse(path)) for path in before} == before
    assert len(before) == written


def test_pin_requires_one_editable_file(run: Run, file: Any) -> None:
    both = run(
        "diff", file("a.json", OLD), file("b.json", NEW), "--from-version", "0.14.4", "--pin"
    )
    assert both[0] == 2 and "--pin requires one file" in both[2]
    code, _, err = run("diff", file("a.yaml", "train_batch_size: 8\n"), *UPGRADE, "--pin")
    assert code == 2 and "only JSON and HJSON can be edited" in err


def test_auto_filled_by_trainer_is_not_rejected() -> None:
    """DeepSpeed 0.14 without the Trainer treats two "auto" switches as both enabled."""
    config = {
        "train_batch_size": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2},
    }
    upgrade = dsconfig.diff(
        config, from_version="0.14.0", to_version="0.19.8", runtime="transformers"
    )
    assert not [change for change in upgrade if change.kind is ChangeKind.ACCEPTED]


def test_upgrade_changes_have_fixed_order(run: Run, file: Any) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "fp16": {"enabled": True},
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": True,
            "offload_optimizer": {"device": "cpu"},
        },
    }
    path = file("a.json", config)
    upgrade = dsconfig.diff(path, from_version="0.14.0", to_version="0.19.8")
    fixed = [change.said.split()[0] for change in upgrade if change.kind is ChangeKind.FIXED]
    report = dsconfig.validate(path, runtime="deepspeed", version="0.14.0")
    assert len(fixed) > 2
    assert fixed == [finding.code for finding in report.diagnostics if finding.code in fixed]


def test_file_without_config_is_not_compared(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("deepspeed: zero3_offload\nlearning_rate: 1e-4\n")
    code, _, err = run("diff", path, *UPGRADE)
    assert code == 2 and "does not name a ds_config" in err
