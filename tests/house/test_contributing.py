"""The worked example in CONTRIBUTING.md works as described."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
TEST, RULE = (
    textwrap.dedent(block)
    for block in re.findall(r"^   ```python\n(.+?)   ```$", PAGE, re.M | re.S)
)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_added_rule_turns_the_example_test_green(tmp_path: Path) -> None:
    call = f"{TEST}\n{re.findall(r'def (test_.+?)[(]', TEST)[0]}()\n"
    before = run(call)
    assert before.returncode == 1 and "AssertionError" in before.stderr
    rule = tmp_path / "rule.py"
    rule.write_text(f"from dsconfig.checks.monitors import *\n{RULE}")
    added = f"import runpy; runpy.run_path({str(rule)!r})\n"
    after = run(added + call)
    assert after.returncode == 0, after.stderr


def test_described_paths_exist() -> None:
    for path in re.findall(r"`((?:dsconfig|engine|tests|docs|schemas)/[\w./-]*)`", PAGE):
        if "DSC924" not in path and path != "tests/checks/test_monitors.py":
            assert (ROOT / path).exists(), path
