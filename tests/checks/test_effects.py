"""Effects of findings: declared by the rule, and stated by the message."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsconfig
from dsconfig.checks.registry import rules
from dsconfig.facts import gather
from dsconfig.reference.examples import check_example
from dsconfig.report import Diagnostic, Effect, Severity
from dsconfig.runtimes.base import NAMES
from dsconfig.runtimes.deepspeed import deepspeed
from dsconfig.schema.version import NEWEST, Version
from narrowing import not_none

RULES = list(rules().values())
ORACLE = Path(__file__).parents[1] / "oracle"
FAILING = re.compile(r"fail|reject|raise|exclusive|kill|cannot|deadlock|no program|stop|refuse")


def test_severity_depends_on_effect_only():
    assert {str(effect): effect.severity for effect in Effect} == {
        "refused": Severity.ERROR,
        "altered": Severity.ERROR,
        "inert": Severity.WARNING,
        "deprecated": Severity.WARNING,
        "costly": Severity.WARNING,
        "note": Severity.INFO,
    }
    assert "severity" not in Diagnostic._fields


@pytest.mark.parametrize("rule", RULES, ids=[rule.code for rule in RULES])
def test_bad_example_has_effect_of_its_page(rule):
    found = {(each.effect, each.late) for each in check_example(rule.bad) if each.code == rule.code}
    assert found == {(rule.effect, rule.late and rule.effect is Effect.REFUSED)}


REFUSED_BY_DEEPSPEED = [
    rule
    for rule in RULES
    if rule.effect is Effect.REFUSED
    and rule.bad.runtime in (None, "deepspeed")
    and rule.code >= "DSC010"  # the codes before are syntax errors
]


@pytest.mark.parametrize("rule", REFUSED_BY_DEEPSPEED, ids=lambda rule: rule.code)
def test_error_is_late_if_deepspeed_parses_bad_example(rule):
    bad = rule.bad
    facts = gather(
        gpus=bad.facts.get("gpus", 8), device=bad.facts.get("device"), model=bad.facts.get("model")
    )
    parser = deepspeed(Version.parse(bad.version) if bad.version else NEWEST, until="parse")
    assert bool(dsconfig.resolve(bad.config, facts, runtime=parser).refusals) is not rule.late


UNRESOLVED = ("DSC150", "DSC152", "DSC154", "DSC251", "DSC252")
"""Errors of the resolver: no program starts without the value."""


@pytest.mark.parametrize("rule", RULES, ids=[rule.code for rule in RULES])
def test_error_message_states_that_the_program_fails(rule):
    for each in check_example(rule.bad):
        has_config = each.code not in ("DSC001", "DSC002", "DSC009", *UNRESOLVED)
        if has_config and each.code == rule.code and each.effect is Effect.REFUSED:
            assert FAILING.search(each.message), each.message


def _diagnostics() -> Iterator[Diagnostic]:
    """Yield findings of every example and recorded config, for each program and for all."""
    for rule in RULES:
        for example in (rule.bad, rule.good):
            for runtime in (None, *NAMES):
                yield from check_example(example._replace(runtime=runtime))
    for row in (ORACLE / "versions.jsonl").read_text().splitlines()[::5]:
        for span in json.loads(row)["ranges"]:
            config = json.loads(row)["config"]
            yield from dsconfig.validate(config, version=span["from"]).diagnostics
    for row in json.loads((ORACLE / "bad_configs.json").read_text())[::2]:
        if isinstance(row["config"], dict):
            for runtime in (None, "deepspeed", "dsengine"):
                yield from dsconfig.validate(row["config"], runtime=runtime).diagnostics


def test_findings_have_listed_effects_only():
    seen = {(each.code, each.effect, each.late) for each in _diagnostics()}
    listed = {rule.code: (rule.effect, *rule.also) for rule in RULES}
    assert not {(code, effect) for code, effect, _ in seen if effect not in listed[code]}
    assert not {code for code, effect, late in seen if late and effect is not Effect.REFUSED}


def test_value_rejected_by_dsengine_is_not_altered_for_it():
    config = {"train_batch_size": 8, "prescale_gradients": "false"}
    alone = dsconfig.validate(config, runtime="dsengine").diagnostics
    assert [each.effect for each in alone if each.code == "DSC032"] == [Effect.REFUSED]
    together = [e for e in dsconfig.validate(config).diagnostics if e.code == "DSC032"]
    assert [each.effect for each in together] == [Effect.ALTERED]
    assert "dsengine" not in together[0].runtimes


@pytest.mark.parametrize("number", [0, 1])
def test_number_instead_of_boolean_is_accepted(number: int) -> None:
    config = {"train_batch_size": 8, "prescale_gradients": number}
    report = dsconfig.validate(config, runtime="dsengine")
    assert [each.effect for each in report.diagnostics if each.code == "DSC032"] == [Effect.ALTERED]
    settled = dsconfig.resolve(config, dsconfig.gather(gpus=8)).effective
    assert not_none(settled).gradients.prescale is bool(number)


def test_unknown_key_is_not_an_error_at_run_time():
    config = {"train_batch_size": 8, "gradient_cliping": 0.5}
    found = [each for each in dsconfig.validate(config).diagnostics if each.code == "DSC021"]
    assert [each.effect for each in found] == [Effect.ALTERED]
    assert {"dsengine", "deepspeed"} <= set(found[0].runtimes)
