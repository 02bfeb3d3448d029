"""Every finding of the resolver has a unique code, a name and a page."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsconfig.__main__ import main
from dsconfig.checks.registry import rules
from dsconfig.resolver.codes import CODES

PACKAGE = Path(__file__).parents[2] / "dsconfig"
PLACES = [
    *(PACKAGE / "resolver").glob("*.py"),
    *(PACKAGE / "runtimes").glob("*.py"),
    PACKAGE / "planner" / "coverage" / "findings.py",
]


def texts():
    return [path.read_text() for path in PLACES if path.name != "codes.py"]


def test_codes_in_use_equal_listed_codes():
    used = {code for text in texts() for code in re.findall(r'"(DSC\d{3})"', text)}
    assert used == CODES.keys()


def test_names_next_to_codes_are_listed():
    named = re.compile(r'code="(DSC\d{3})",\s+name="([a-z0-9-]+)"')
    pairs = [pair for text in texts() for pair in named.findall(text)]
    assert pairs and all(CODES[code].name == name for code, name in pairs)


def test_codes_are_not_validate_rules():
    assert not CODES.keys() & rules().keys()


EXAMPLES = {code: found.example for code, found in CODES.items() if found.example}


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_reports_code_and_effect(code, tmp_path, capsys, monkeypatch):
    config, flags = EXAMPLES[code]
    (tmp_path / "ds.json").write_text(config)
    command = ["dsconfig", "resolve", str(tmp_path / "ds.json"), *flags.split()]
    monkeypatch.setattr("sys.argv", [*command, "--output-format", "json"])
    with pytest.raises(SystemExit):
        main()
    found = json.loads(capsys.readouterr().out)["diagnostics"]
    assert CODES[code].effect in {each["effect"] for each in found if each["code"] == code}


@pytest.mark.parametrize("code", ["DSC150", "dsc760"])
def test_explain_prints_doc_effect_and_remedy(code):
    done = subprocess.run(
        [sys.executable, "-m", "dsconfig", "explain", code],
        capture_output=True,
        text=True,
        check=True,
    )
    entry = CODES[code.upper()]
    page = " ".join(done.stdout.split())
    assert entry.name in page and entry.doc in page and entry.remedy in page
    assert f"Effect: `{entry.effect}`" in page
