"""Every finding has a code of its own, a name, and something to read about it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsconfig.checks.registry import rules
from dsconfig.resolver.codes import CODES

PACKAGE = Path(__file__).parents[2] / "dsconfig"
PLACES = [*(PACKAGE / "resolver").glob("*.py"), *(PACKAGE / "runtimes" / "behaviour").glob("*.py")]


def used():
    pattern = re.compile(r'"(DSC\d{3})",\s+"([a-z0-9-]+)"')
    named = re.compile(r'code="(DSC\d{3})",\s+name="([a-z0-9-]+)"')
    for path in PLACES:
        if path.name != "codes.py":
            yield from pattern.findall(path.read_text()) + named.findall(path.read_text())


def test_every_code_in_use_is_listed_under_its_name():
    assert dict(used()) == {code: entry.name for code, entry in CODES.items()}


def test_no_code_is_also_a_rule_of_validate():
    assert not CODES.keys() & rules().keys()


@pytest.mark.parametrize("code", ["DSC150", "dsc760"])
def test_explain_knows_them(code):
    done = subprocess.run(
        [sys.executable, "-m", "dsconfig", "explain", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert CODES[code.upper()].name in done.stdout
