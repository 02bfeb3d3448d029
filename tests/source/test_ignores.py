"""Suppression of findings in a config."""

import json
from itertools import count

import pytest

import dsconfig
from dsconfig.report import Diagnostic, Effect
from dsconfig.source import ignores, read
from dsconfig.source.findings import RETIRED, current, matches
from dsconfig.source.ignores import without_ignored
from dsconfig.source.pointer import lookup

BAD = {"train_batch_size": 8, "no_such_key": 1}


def codes(text: str, runtime: str | None = None) -> list[str]:
    return [found.code for found in dsconfig.validate(text, runtime=runtime).diagnostics]


def unknown() -> tuple[str, str]:
    (found,) = [
        each for each in dsconfig.validate(BAD).diagnostics if each.pointer == "/no_such_key"
    ]
    return found.code, found.name


def test_section_ignores_by_code_prefix_and_name() -> None:
    code, name = unknown()
    for selector in (code, code[:4], name, code.lower()):
        text = json.dumps({**BAD, "$dsconfig": {"ignore": [selector]}})
        assert code not in codes(text)


@pytest.mark.parametrize("retired", sorted(RETIRED))
def test_retired_code_ignores_its_successor(retired: str) -> None:
    found = Diagnostic("DSC999", current(retired), Effect.NOTE, "")
    if retired.startswith("DSC"):
        found = Diagnostic(current(retired), "any-name", Effect.NOTE, "")
    assert matches(retired, found) and matches(retired.lower(), found)


def test_comment_ignores_same_or_next_line() -> None:
    code, _ = unknown()
    behind = f'{{"train_batch_size": 8,\n"no_such_key": 1 // dsconfig: ignore[{code}]\n}}'
    above = f'{{"train_batch_size": 8,\n# dsconfig: ignore[{code}, DSC999]\n"no_such_key": 1\n}}'
    everything = '{"train_batch_size": 8,\n"no_such_key": 1 /* dsconfig: ignore */\n}'
    elsewhere = (
        f'{{"train_batch_size": 8, // dsconfig: ignore[{code}]\n"x": 1, "no_such_key": 1\n}}'
    )
    assert code not in codes(behind) + codes(above) + codes(everything)
    assert code in codes(elsewhere)


def test_directive_in_string_is_not_a_comment() -> None:
    code, _ = unknown()
    text = f'{{"train_batch_size": 8,\n"no_such_key": "// dsconfig: ignore[{code}]"\n}}'
    assert code in codes(text)


def test_unused_ignores_are_reported_for_all_programs() -> None:
    text = '{"train_batch_size": 8, "$dsconfig": {"ignore": ["DSC999"]}}'
    report = dsconfig.validate(text)
    (found,) = [each for each in report.diagnostics if each.code == "DSC010"]
    assert found.pointer == "/$dsconfig/ignore/0"
    assert found.range and found.range.start.column == 50
    assert "DSC010" not in codes(text, runtime="deepspeed")
    assert "DSC010" in codes('{"train_batch_size": 8\n}\n\n// dsconfig: ignore[DSC999]\n')


def test_remarks_in_section_are_accepted() -> None:
    section = {"$dsconfig": {"remarks": {"ours": ["x"], "no_such_key": 1}}}
    plain = {"train_batch_size": 8}
    assert codes(json.dumps(plain | section)) == codes(json.dumps(plain))


def test_malformed_ignores_are_reported() -> None:
    for section in ([], {"ignore": "DSC1"}, {"ignore": [1, ""]}, {"ignor": []}):
        text = json.dumps({"train_batch_size": 8, "$dsconfig": section})
        assert "DSC011" in codes(text)


def test_unreadable_input_cannot_be_ignored() -> None:
    document = read('{"$dsconfig": {"ignore": ["DSC0"]}, "a" = 1}\n')
    kept = without_ignored(document, document.diagnostics)
    assert [found.code for found in kept] == ["DSC002"]


def test_ignore_lookup_is_linear_in_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count()

    def looked_up(value: object, pointer: str) -> object:
        next(looks)
        return lookup(value, pointer)

    monkeypatch.setattr(ignores, "lookup", looked_up)
    entries = ",\n".join(f'"no_such_{n}": {n} // dsconfig: ignore[DSC021]\n' for n in range(40))
    document = read(f'{{"train_batch_size": 8,\n{entries}}}\n')
    found = [each for each in dsconfig.validate(document).diagnostics if each.code == "DSC021"]
    assert not found
    assert next(looks) == len(document.spans)
