"""The machine-readable formats: JSON, GitHub, GitLab, SARIF, JUnit."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname
from xml.etree import ElementTree

import jsonschema
import pytest

from dsconfig.report import FileReport, Report
from dsconfig.report.render import Look, render
from report.findings import FILES, IDLE, NOTE, WRONG

COLORED = Look(color=True)
REGION = {
    "type": "object",
    "required": ["startLine", "startColumn", "endLine", "endColumn"],
    "additionalProperties": {"type": "integer", "minimum": 1},
}
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["version", "$schema", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results", "columnKind"],
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name", "version", "rules"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "required": ["id", "shortDescription", "helpUri"],
                                            "properties": {
                                                "shortDescription": TEXT,
                                                "helpUri": {"type": "string", "format": "uri"},
                                            },
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["ruleId", "level", "message", "locations"],
                            "properties": {
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": TEXT,
                                "locations": {
                                    "type": "array",
                                    "minItems": 1,
                                    "items": {
                                        "required": ["physicalLocation"],
                                        "properties": {
                                            "physicalLocation": {
                                                "required": ["artifactLocation"],
                                                "properties": {"region": REGION},
                                            }
                                        },
                                    },
                                },
                                "partialFingerprints": {
                                    "type": "object",
                                    "additionalProperties": {"type": "string"},
                                },
                                "fixes": {
                                    "type": "array",
                                    "items": {
                                        "required": ["artifactChanges"],
                                        "properties": {
                                            "artifactChanges": {
                                                "type": "array",
                                                "items": {
                                                    "required": ["replacements"],
                                                    "properties": {
                                                        "replacements": {
                                                            "type": "array",
                                                            "minItems": 1,
                                                            "items": {
                                                                "required": ["deletedRegion"],
                                                                "properties": {
                                                                    "deletedRegion": REGION,
                                                                    "insertedContent": TEXT,
                                                                },
                                                            },
                                                        }
                                                    },
                                                },
                                            }
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


def test_json_has_the_published_shape() -> None:
    data = json.loads(render("json", FILES, COLORED))
    assert list(data) == ["format_version", "files", "summary"]
    assert data["format_version"] == "2.0"
    assert data["summary"] == {"files": 2, "errors": 2, "warnings": 1, "notes": 1}
    first, clean = data["files"]
    assert clean == {"file": "clean.json", "valid": True, "diagnostics": []}
    assert first["valid"] is False
    assert first["diagnostics"][0] == {
        "code": "DSC412",
        "name": "wrong-stage",
        "severity": "error",
        "effect": "refused",
        "late": False,
        "runtimes": ["deepspeed", "dsengine"],
        "pointer": "/stage",
        "message": 'stage is "three": DeepSpeed stops',
        "help": "write 3",
        "url": WRONG.url,
        "range": {"start": {"line": 2, "column": 11}, "end": {"line": 2, "column": 18}},
        "fix": {
            "applicability": "safe",
            "edits": [
                {
                    "range": {"start": {"line": 2, "column": 11}, "end": {"line": 2, "column": 18}},
                    "content": "3",
                }
            ],
        },
    }
    assert first["diagnostics"][2]["range"] is None
    assert first["diagnostics"][2]["fix"] is None


@pytest.mark.parametrize("form", ["json", "github", "sarif", "junit"])
def test_machine_formats_are_deterministic_and_without_color(form: str) -> None:
    text = render(form, FILES, COLORED)
    assert "\x1b[1;31m" not in text
    assert text == render(form, FILES, Look())


def test_github_annotations_are_escaped() -> None:
    lines = render("github", FILES, COLORED).splitlines()
    assert lines[0] == (
        "::error file=configs/a b%2Cc%3Ad.json,line=2,col=11,endLine=2,endColumn=18,"
        'title=DSC412 wrong-stage::stage is "three": DeepSpeed stops%0Ahelp: write 3'
    )
    assert lines[1].startswith("::warning ") and "100%25, really" in lines[1]
    assert lines[2].startswith("::notice file=configs/a b%2Cc%3Ad.json,title=DSC001 unplaced::")


def test_sarif_has_the_structure_of_2_1_0() -> None:
    data = json.loads(render("sarif", FILES, COLORED))
    jsonschema.validate(data, SARIF)
    (run,) = data["runs"]
    assert [result["ruleId"] for result in run["results"]] == [
        "DSC412",
        "DSC420",
        "DSC001",
        "DSC601",
    ]
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[each["ruleIndex"]]["id"] == each["ruleId"] for each in run["results"])
    where = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert where == {"uri": "configs/a%20b%2Cc%3Ad.json"}


def test_sarif_uses_uris_for_absolute_paths_and_stable_fingerprints() -> None:
    def result(file: str, line: str) -> Any:
        report = FileReport(file, line, Report((WRONG,)))
        return json.loads(render("sarif", [report], COLORED))["runs"][0]["results"][0]

    one, other = result("/x/a.json", "{}"), result("b.json", "\n\n{}")
    assert one["partialFingerprints"] == other["partialFingerprints"]
    location = one["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "file:///x/a.json"}


def test_junit_fails_only_where_validate_does() -> None:
    warned = [FileReport("ds.json", "{}", Report((IDLE, NOTE)))]
    root = ElementTree.fromstring(render("junit", warned, COLORED))
    assert (root.get("tests"), root.get("failures")) == ("2", "0")
    output = [each.text or "" for each in root.findall("testsuite/testcase/system-out")]
    assert [text.partition(":")[0] for text in output] == ["warning", "info"]
    strict = render("junit", warned, COLORED, error_on_warning=True)
    assert ElementTree.fromstring(strict).get("failures") == "1"


def test_junit_has_a_failure_for_each_error_and_warning() -> None:
    root = ElementTree.fromstring(render("junit", FILES, COLORED, error_on_warning=True))
    assert (root.get("tests"), root.get("failures")) == ("5", "3")
    first, clean = root.findall("testsuite")
    assert len(first.findall("testcase/failure")) == 3
    assert len(first.findall("testcase/system-out")) == 1
    assert [case.get("name") for case in clean.findall("testcase")] == ["valid"]
    failure = first.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "error"
    assert failure.text and failure.text.startswith("line 2, column 11: stage")


def test_empty_input_gives_valid_documents() -> None:
    for form in ("json", "sarif"):
        json.loads(render(form, [], COLORED))
    ElementTree.fromstring(render("junit", [], COLORED))
    assert render("github", [], COLORED) == "" == render("full", [], COLORED)
    assert {NOTE.severity, IDLE.severity} == {"info", "warning"}


def test_rule_links_resolve_without_network() -> None:
    """Every page is installed; SARIF contains it in full, and JSON its URI."""
    from dsconfig.reference.rule_pages import pages

    for name, page in pages().items():
        if name != "README.md":
            url = WRONG._replace(code=name.removesuffix(".md")).url
            assert Path(url2pathname(urlsplit(url).path)).read_text("utf-8") == page
    known = WRONG._replace(code="DSC101", name="auto-unresolved")
    log = json.loads(render("sarif", [FileReport("ds.json", "{}", Report((known,)))]))
    (rule,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert rule["helpUri"] == known.url and rule["helpUri"].startswith("file://")
    assert rule["help"]["markdown"] == pages()["DSC101.md"] == rule["help"]["text"]
    assert rule["shortDescription"]["text"] == 'Unresolved value "auto"'


def test_junit_counts_causes_like_validate() -> None:
    """Findings that differ only in the key are one case, as in the summary of validate."""
    found = [WRONG._replace(pointer=f"/zero_optimization/{key}", fix=None) for key in "abc"]
    text = render("junit", [FileReport("ds.json", "{}", Report(tuple(found)))])
    assert '<testsuites name="dsconfig" tests="1" failures="1">' in text
    assert text.count("<failure") == 1 and "also: b" in text


GITLAB = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "properties": {
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "required": ["path", "lines"],
                "properties": {
                    "lines": {
                        "required": ["begin"],
                        "properties": {"begin": {"type": "integer", "minimum": 1}},
                    }
                },
            },
        },
    },
}
"""What GitLab documents for a Code Quality report."""


def test_gitlab_report_has_a_fingerprint_per_finding() -> None:
    moved = FILES[0]._replace(report=Report((WRONG, WRONG, IDLE, NOTE)))
    found = json.loads(render("gitlab", [moved, *FILES[1:]]))
    jsonschema.validate(found, GITLAB)
    assert len({each["fingerprint"] for each in found}) == len(found)
    assert {each["severity"] for each in found} == {"major", "minor", "info"}


def test_gitlab_fingerprint_does_not_depend_on_the_line() -> None:
    assert WRONG.range is not None
    start, end = (place._replace(line=place.line + 5) for place in WRONG.range)
    lower = WRONG._replace(range=WRONG.range._replace(start=start, end=end))
    reports = [[FILES[0]._replace(report=Report((found,)))] for found in (WRONG, lower)]
    before, after = (json.loads(render("gitlab", report))[0] for report in reports)
    assert before["fingerprint"] == after["fingerprint"]
    assert before["location"]["lines"] != after["location"]["lines"]
