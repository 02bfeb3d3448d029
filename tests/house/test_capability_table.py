"""What dsengine does not support is stated in one table, ``dsconfig/features``."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsconfig
from dsconfig.features.table import DEGREES, FEATURES, Capability, Status
from dsconfig.planner.capabilities import TABLES

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "engine" / "dsengine"
UNSUPPORTED = re.compile(
    r"\b(?:not|never) (?:yet )?(?:supported|implemented|executed)\b|\bunsupported\b"
    r"|\b(?:do(?:es)? not|do(?:es)?n't|cannot|can't) (?:support|implement|execute)\b"
    r"|\bno support\b|\bdsengine (?:has no|have no|lacks|does not|cannot use)\b"
    r"|\bcannot (?:be )?"
    r"(?:accumulat|divid|merg|offload|quantiz|shard|simulat|split|updat)(?:e|ed)?\b"
    r"|\b(?:is|are) not (?:divided|offloaded|sharded|simulated|split)\b",
    re.IGNORECASE,
)
ALLOWED = {
    "cannot be divided (": "the conversion of one family of transformers",
    "cannot be divided over": "a number that does not divide another",
    "cannot be merged into the weights": "an adapter that peft cannot merge either",
    "does not support amsgrad": "DeepSpeed's own class refuses the argument too",
    "reentry is unsupported": "DeepSpeed's message",
    "which ZeRO does not support": "files that DeepSpeed would read",
}
"""Excerpts of sentences about other programs or the call itself, and why."""


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string that is no docstring; ``{}`` replaces values."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in skipped:
            yield node.lineno, str(node.value)


def of_engine() -> Iterator[tuple[str, str]]:
    for path in sorted(ENGINE.rglob("*.py")):
        for line, text in sentences(path.read_text("utf-8")):
            yield f"{path.relative_to(ROOT)}:{line}", text


def test_engine_states_no_limit_of_its_own() -> None:
    found = [(where, text) for where, text in of_engine() if UNSUPPORTED.search(text)]
    stray = [(w, text) for w, text in found if not any(part in text for part in ALLOWED)]
    assert stray == [], "write it in dsconfig/features, and refer to it"
    unused = [part for part in ALLOWED if not any(part in text for _, text in found)]
    assert unused == []


def test_engine_repeats_no_statement_of_the_table() -> None:
    reasons = {each.reason for each in FEATURES.values()}
    assert [(w, text) for w, text in of_engine() if any(part in text for part in reasons)] == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise ValueError('pipelines are not supported: use stage 3')", True),
        ("raise ValueError(f'{name} is not ' f'supported by {x}')", True),
        ("message = 'dsengine does not implement it'", True),
        ("message = f'parameters of dsengine have no {name}: {instead}'", True),
        ("message = f'{kind} cannot be offloaded: its update is not elementwise'", True),
        ("message = 'a weight that ranks cannot split'", True),
        ('def f():\n    """Not supported."""', False),
        ("# not supported\nx = 'supported'", False),
    ],
)
def test_sentences_are_found(code: str, found: bool) -> None:
    assert any(UNSUPPORTED.search(text) for _, text in sentences(code)) is found


# The table itself


def test_degrees_are_those_that_the_engine_splits() -> None:
    from dsengine.sharding import SPLITS

    splits = {axis for axis, split in SPLITS.items() if split is not None}
    assert splits == {a for a, each in DEGREES.items() if each.status is Status.HONOURED}


def test_each_feature_is_referred_to() -> None:
    sources = [*(ROOT / "dsconfig").rglob("*.py"), *ENGINE.rglob("*.py")]
    home = ROOT / "dsconfig" / "features" / "table.py"
    text = "".join(path.read_text("utf-8") for path in sources if path != home)
    assert [name for name in FEATURES if not re.search(rf"[\"']{name}[\"']", text)] == []


def test_each_refusal_has_an_alternative() -> None:
    for kind in TABLES:
        table = dsconfig.capabilities(kind)
        assert table
        for name, cases in table.items():
            assert cases and cases[-1].condition == "", (kind, name)
            for case in cases:
                assert case.reason and bool(case.instead) >= (case.status is Status.REFUSED), name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LBFGS", [(Status.REFUSED, "")]),
        ("Muon", [(Status.REFUSED, "with optimizer offload"), (Status.HONOURED, "")]),
        ("AdamW", [(Status.HONOURED, "")]),
    ],
)
def test_cases_of_an_optimizer(name: str, expected: list[tuple[Status, str]]) -> None:
    cases: tuple[Capability, ...] = dsconfig.capabilities("optimizer")[name]
    assert [(case.status, case.condition) for case in cases] == expected


def test_keys_of_a_switched_block_are_inert_while_it_is_off() -> None:
    table = dsconfig.capabilities("key")
    assert [case.status for case in table["fp16.loss_scale"]] == [Status.INERT, Status.HONOURED]
    assert [case.status for case in table["fp16.enabled"]] == [Status.HONOURED]


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind is 'keys': use key, degree"):
        dsconfig.capabilities("keys")  # type: ignore[arg-type]
