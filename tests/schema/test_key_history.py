"""First and last release of each key match the record of releases 0.3.0 to 0.19.8."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsconfig import schema
from dsconfig.schema import Bounds, Key, Version, keys

HISTORY: dict[str, Mapping[str, Any]] = {
    row["path"]: row
    for row in json.loads(
        (Path(__file__).parent.parent / "oracle" / "key_history.json").read_text()
    )
    if not row["path"].endswith(".*")
}
DECLARED: dict[str, Key] = {key.path: key for key in keys()}


def version(text: str | None) -> Version | None:
    return Version.parse(text) if text else None


def before(release: Version) -> Version:
    """The release before one whose patch number is not 0, or a stand-in for it."""
    if release.patch:
        return release._replace(patch=release.patch - 1)
    return Version(release.major, release.minor - 1, 99)


def test_every_recorded_key_is_declared() -> None:
    assert HISTORY.keys() - DECLARED.keys() == set()


def test_first_and_last_release() -> None:
    declared = {path: (DECLARED[path].since, DECLARED[path].until) for path in HISTORY}
    assert declared == {
        path: (version(row["since"]), version(row["until"])) for path, row in HISTORY.items()
    }


def test_gaps_in_key_history() -> None:
    absent = {
        path: (version(span["from"]), version(span["to"]))
        for path, row in HISTORY.items()
        for span in row.get("absent_ranges", ())
    }
    assert {path: DECLARED[path].gap for path in HISTORY if DECLARED[path].gap} == absent


def test_release_that_refuses_a_removed_key() -> None:
    refused = {path: version(row.get("rejected_from")) for path, row in HISTORY.items()}
    assert {path: DECLARED[path].refused_from for path in HISTORY} == refused


def test_defaults_of_earlier_releases() -> None:
    changes = [
        (DECLARED[path], Version.parse(change["version"]), change)
        for path, row in HISTORY.items()
        for change in row["default_changes"]
    ]
    assert len(changes) > 20
    for key, changed, change in changes:
        assert key.default_at(before(changed)) == change["from"], key.path
        assert key.default_at(changed) == change["to"], key.path


def test_unrecorded_default_of_removed_key() -> None:
    """SPARSE_PRUNING_DENSE_RATIO_DEFAULT in DeepSpeed 0.9.3 to 0.19.6."""
    path = "compression_training.sparse_pruning.shared_parameters.dense_ratio"
    assert DECLARED[path].default == 0.1


def test_defaults_of_the_newest_release() -> None:
    """Of keys that are alive; those of bfloat16 are recorded under the name bf16."""
    recorded = {
        path: row["default_latest"]
        for path, row in HISTORY.items()
        if row["default_known"] and row["until"] is None and not path.startswith("bfloat16")
    }
    declared = {path: DECLARED[path].default for path in recorded if not DECLARED[path].is_block}
    assert len(declared) > 250
    # A free mapping stands as absent with us, as {} in the record.
    assert declared == {path: recorded[path] if recorded[path] != {} else None for path in declared}


@pytest.mark.parametrize(
    ("path", "changed", "was"),
    [
        ("zero_optimization.reduce_bucket_size", "0.19.6", Bounds(minimum=0)),
        ("zero_optimization.zenflow.topk_ratio", "0.19.6", Bounds(minimum=0.0, maximum=1.0)),
        ("hybrid_engine.max_out_tokens", "0.19.7", Bounds()),
        ("fp16.loss_scale", "0.18.8", Bounds()),
        ("fp16.min_loss_scale", "0.19.3", Bounds()),
    ],
)
def test_bounds_of_earlier_releases(path: str, changed: str, was: Bounds) -> None:
    key = DECLARED[path]
    release = Version.parse(changed)
    assert key.bounds_at(before(release)) == was
    assert key.bounds_at(release) == key.bounds != was


CLOSED = {
    path: [Version.parse(change["version"]) for change in changes]
    for path, row in HISTORY.items()
    if (
        changes := [
            one for one in row["strictness_changes"] if "unknown keys rejected" in one["to"]
        ]
    )
}


@pytest.mark.parametrize("path", CLOSED)
def test_release_since_which_a_block_is_closed(path: str) -> None:
    for release in CLOSED[path]:
        assert schema.strict_at(path, release)
        assert not schema.strict_at(path, before(release))


def test_blocks_that_were_never_closed() -> None:
    closed = {
        key.path
        for key in DECLARED.values()
        if key.is_block and "params" not in key.path and schema.strict_since(key.path)
    }
    extra = {"zero_optimization.zeropp_loco_param"}  # closed with its parent
    assert closed == CLOSED.keys() | extra


def test_compile_gap() -> None:
    compile_block = DECLARED["compile"]
    assert [
        compile_block.read_at(Version.parse(v)) for v in ("0.13.1", "0.14.3", "0.15.0", "0.16.6")
    ] == [False, True, False, True]
    assert [
        schema.strict_at("compile", Version.parse(v)) for v in ("0.14.3", "0.15.0", "0.16.6")
    ] == [True, False, True]
