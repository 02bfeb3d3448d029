"""Declarations match the measured key list of DeepSpeed 0.19.8."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dsconfig import schema
from dsconfig.schema import Bounds, Key, KeyStatus, Version, keys

ORACLE = Path(__file__).parent.parent / "oracle"
LISTED: dict[str, Mapping[str, Any]] = {
    row["path"]: row for row in json.loads((ORACLE / "ds_config_keys.json").read_text())
}
DECLARED: dict[str, Key] = {key.path: key for key in keys()}


def disagreements(
    declared: Callable[[Key], Any], listed: Callable[[Mapping[str, Any]], Any]
) -> dict[str, tuple[Any, Any]]:
    """What the declarations and the list say, for each key on which they differ."""
    pairs = {path: (declared(DECLARED[path]), listed(row)) for path, row in LISTED.items()}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


def test_every_listed_key_is_declared() -> None:
    assert LISTED.keys() - DECLARED.keys() == set()


def test_unlisted_live_keys_are_arguments_and_bfloat16() -> None:
    live = {path for path, key in DECLARED.items() if key.status is KeyStatus.LIVE}
    by_type = ("optimizer.params.", "scheduler.params.", "bfloat16.")
    assert {path for path in live - LISTED.keys() if not path.startswith(by_type)} == set()


def test_types() -> None:
    assert disagreements(
        lambda key: frozenset(key.type.split("|")),
        lambda row: frozenset(row["type"].split("|")),
    ) == {
        # false turns DataStates off; the list names the mapping alone.
        "datastates_ckpt": ({"object", "boolean"}, {"object"}),
    }


def default_of(row: Mapping[str, Any]) -> Any:
    """The default of a value; a block that is absent has none, nor has a required key."""
    is_open = row["required"] or row["type"].startswith("object")
    return None if is_open else row["default"]


def test_defaults() -> None:
    assert disagreements(lambda key: key.default, default_of) == {}


def test_defaults_distinguish_int_and_float() -> None:
    assert disagreements(
        lambda key: type(key.default),
        lambda row: type(default_of(row)),
    ) == {
        # The list holds 5e8 as DeepSpeed wrote it.
        "allgather_size": (int, float),
    }


def test_required_keys() -> None:
    assert (
        disagreements(
            lambda key: key.required or key.required_when is not None,
            lambda row: row["required"],
        )
        == {}
    )


def test_bounds() -> None:
    assert (
        disagreements(
            lambda key: key.bounds,
            lambda row: Bounds(
                minimum=row["min"],
                maximum=row["max"],
                exclusive_minimum=row["exclusive_min"],
                exclusive_maximum=row["exclusive_max"],
            ),
        )
        == {}
    )


def test_choices() -> None:
    differing = disagreements(
        lambda key: {choice for choice in key.choices if not _is_passed_through(key, choice)},
        lambda row: {choice for choice in row["enum"] or () if choice is not None},
    )
    # The nine names that DeepSpeed takes for whether an expert, a score or a dtype is "auto"
    # are words of their type; nothing differs.
    assert differing == {}


def _is_passed_through(key: Key, choice: Any) -> bool:
    """torch's schedules (the list names DeepSpeed's), and optimizers that were removed."""
    from dsconfig.schema.optimizers import OPTIMIZERS
    from dsconfig.schema.schedules import SCHEDULES

    return (key.path == "scheduler.type" and not SCHEDULES[choice].is_own) or (
        key.path == "optimizer.type" and OPTIMIZERS[choice].until is not None
    )


def test_units() -> None:
    assert disagreements(lambda key: key.unit, lambda row: row["unit"]) == {}


def test_status() -> None:
    assert disagreements(lambda key: str(key.status), lambda row: row["status"]) == {}


def test_aliases() -> None:
    def listed(row: Mapping[str, Any]) -> list[str]:
        # bfloat16 is declared as a block of its own: it is read only where bf16 is absent.
        return [] if row["path"] == "bf16" else row["aliases"]

    assert disagreements(lambda key: list(key.aliases), listed) == {}


def test_programs_that_fill_auto() -> None:
    found = disagreements(
        lambda key: list(key.auto_filled_by), lambda row: row.get("hf_auto_by", [])
    )
    # DeepSpeedPlugin writes infinity over whatever stands there, "auto" included.
    assert found == {"steps_per_print": (["accelerate"], [])}


def test_checks_of_deepspeed() -> None:
    """A block is checked by being closed; the list's word for a value is its type."""
    values = {path for path, row in LISTED.items() if not row["type"].startswith("object")}
    checked = {path for path in values if DECLARED[path].checked_since is not None}
    assert checked == {path for path in values if LISTED[path]["type_enforced"]}


def test_releases_that_refuse_a_removed_key() -> None:
    def listed(row: Mapping[str, Any]) -> Version | None:
        # An argument goes with its optimizer: no message of DeepSpeed names it.
        argument = row["path"].startswith("optimizer.params.")
        return Version.parse(row["removed_in"]) if row["removed_in"] and not argument else None

    assert disagreements(lambda key: key.refused_from, listed) == {}


def test_replacements() -> None:
    def listed(row: Mapping[str, Any]) -> str | None:
        return row["deprecated"]["replaced_by"] if row["deprecated"] else None

    zero = "zero_optimization"
    assert disagreements(lambda key: key.replaced_by, listed) == {
        # The list names the key alone; ours is the full path.
        f"{zero}.cpu_offload": (f"{zero}.offload_optimizer", "offload_optimizer"),
        f"{zero}.cpu_offload_param": (f"{zero}.offload_param", "offload_param"),
        f"{zero}.cpu_offload_use_pin_memory": (
            f"{zero}.offload_optimizer.pin_memory",
            "offload_param or offload_optimizer",
        ),
        f"{zero}.stage3_gather_fp16_weights_on_model_save": (
            f"{zero}.stage3_gather_16bit_weights_on_model_save",
            "gather_16bit_weights_on_model_save",
        ),
    }


def test_replacements_and_related_keys_exist() -> None:
    named = {
        (path, other)
        for path, key in DECLARED.items()
        for other in (*key.related, *((key.replaced_by,) if key.replaced_by else ()))
    }
    assert {(path, other) for path, other in named if schema.key(other) is None} == set()
