"""Pages of rules show the real output for their examples.

tests/house checks that the generated files are up to date.
"""

import json
import re
import shlex
from functools import cache
from typing import Any, NamedTuple

import pytest

from dsconfig.checks.registry import rules
from dsconfig.reference.examples import check_example
from dsconfig.reference.rule_pages import pages
from dsconfig.runtimes.base import NAMES
from validate.test_command import Run, put, run

__all__ = ["run"]

written_pages = cache(pages)
CODES = list(rules())
BLOCK = re.compile(r"^```(?:json)?\n(.*?)\n```$", re.M | re.S)
NAMED = re.compile(r"^`(\w+\.json)`:\n\n```json\n(.*?)\n```$", re.M | re.S)
COMMAND = re.compile(r"^`dsconfig (\w+) (\S+) ?(.*)`$", re.M)
QUOTED = re.compile(r"^> `(.+)`: (.+)\.$", re.M)
HELP = re.compile(r"^> help: (.+)$", re.M)


class Example(NamedTuple):
    """File of an example, and the command and flags to check it."""

    command: str
    file: str
    flags: list[str]

    def diagnostics(self, run: Run, *more: str) -> list[dict[str, Any]]:
        flags = (*self.flags, *more, "--output-format", "json")
        report = json.loads(run(self.file, *flags, command=self.command).out)
        return [found for file in report.get("files", [report]) for found in file["diagnostics"]]


def section(code: str, title: str) -> str:
    return written_pages()[f"{code}.md"].partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def written(code: str, title: str) -> Example:
    """Write an example as shown on its page."""
    text = section(code, title)
    config = BLOCK.findall(text)[0]
    command = COMMAND.search(text)
    verb, file, flags = command.groups() if command else ("validate", "ds.json", "")
    if config != file:  # otherwise, the example is a missing file
        put(file, config + "\n")
    for name, content in NAMED.findall(text):
        put(name, content)
    return Example(verb, file, shlex.split(flags))


def listed(code: str, what: str) -> list[str]:
    (found,) = re.findall(rf"^- {what}: (.+)$", written_pages()[f"{code}.md"], re.M)
    return found.split(", ")


@pytest.mark.parametrize("code", CODES)
def test_bad_example_has_finding_quoted_on_page(code: str, run: Run) -> None:
    found = [each for each in written(code, "Bad").diagnostics(run) if each["code"] == code]
    ((place, message),) = QUOTED.findall(section(code, "Bad"))
    message = message.removeprefix("TrainingArguments: ")  # a file of its own on the command line
    by_text = {(each["pointer"] or "(file)", _plain(each["message"])): each for each in found}
    assert (place, message) in by_text
    one = by_text[place, message]
    assert HELP.findall(section(code, "Bad")) == ([one["help"]] if one["help"] else [])
    assert f"- Effect: `{one['effect']}`" in written_pages()[f"{code}.md"]
    assert one["severity"] in listed(code, "Severity")[0].split(" or ")


def _plain(message: str) -> str:
    """Return a message without the location of the arguments file."""
    return re.sub(r"args\.json:\d+", "TrainingArguments", message)


@pytest.mark.parametrize("code", CODES)
def test_good_example_of_page_passes(code: str, run: Run) -> None:
    found = written(code, "Good").diagnostics(run)
    assert not [each for each in found if each["code"] == code or each["severity"] == "error"]


@pytest.mark.parametrize("code", CODES)
def test_fix_resolves_finding_without_new_errors(code: str, run: Run) -> None:
    example = written(code, "Bad")
    before = example.diagnostics(run)
    fixable = [each for each in before if each["code"] == code and each["fix"]]
    if not fixable:
        return
    run(example.file, *example.flags, "--unsafe-fixes")
    after = example.diagnostics(run)
    places = {(each["code"], each["pointer"]) for each in after}
    assert not places & {(code, each["pointer"]) for each in fixable}
    errors = {each["code"] for each in before if each["severity"] == "error"}
    assert {each["code"] for each in after if each["severity"] == "error"} <= errors


ELSEWHERE = {
    "DSC150": "the other programs require other facts than those of the example",
    "DSC756": "transformers compares the steps, and stops if they differ",
    "DSC036": "dsengine reports other sizes than the example's",
    "DSC101": "transformers and accelerate fill in the key of the example",
    "DSC102": "transformers and accelerate handle the key of the example differently",
    "DSC704": "accelerate rejects other values than the example's",
}
"""Rules whose example applies to only some of the listed programs."""


@pytest.mark.parametrize("code", CODES)
def test_rule_applies_to_programs_listed_on_page(code: str) -> None:
    """Checked for each program, or taken from the finding if only all together report it."""
    example = rules()[code].bad
    together = [each for each in check_example(example._replace(runtime=None)) if each.code == code]
    alone = {name: check_example(example._replace(runtime=name)) for name in NAMES}
    meeting = [name for name, found in alone.items() if any(each.code == code for each in found)]
    if example.runtime is None:
        meeting = list(together[0].runtimes or NAMES)
    if code in ELSEWHERE:
        assert set(meeting) < set(listed(code, "Checked for"))
    else:
        assert meeting == listed(code, "Checked for")
