"""What a page shows is what happens to who types it in.

Whether the files in docs/reference/rules are these pages is asked in tests/house.
"""

import json
import re
import shlex
from functools import cache
from typing import Any, NamedTuple

import pytest

from dsconfig.checks.examples import judge
from dsconfig.checks.page import pages
from dsconfig.checks.registry import rules
from dsconfig.runtimes.base import NAMES
from validate.test_command import Run, put, run

__all__ = ["run"]

written_pages = cache(pages)
CODES = list(rules())
BLOCK = re.compile(r"^```(?:json)?\n(.*?)\n```$", re.M | re.S)
COMMAND = re.compile(r"^`dsconfig validate (\S+) ?(.*)`$", re.M)
QUOTED = re.compile(r"^> `(.+)`: (.+)\.$", re.M)
HELP = re.compile(r"^> help: (.+)$", re.M)


class Example(NamedTuple):
    """The file of an example, and the command that judges it."""

    file: str
    flags: list[str]

    def judged(self, run: Run, *more: str) -> list[dict[str, Any]]:
        result = run(self.file, *self.flags, *more, "--output-format", "json")
        (file,) = json.loads(result.out)["files"]
        return file["diagnostics"]


def section(code: str, title: str) -> str:
    return written_pages()[f"{code}.md"].partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def written(code: str, title: str) -> Example:
    """An example of a page, put down as the page has it."""
    text = section(code, title)
    config, *arguments = BLOCK.findall(text)
    command = COMMAND.search(text)
    file, flags = command.groups() if command else ("ds.json", "")
    if config != file:  # else it is the name of a file that is not there
        put(file, config + "\n")
    for each in arguments:
        put("args.json", each)
    return Example(file, shlex.split(flags))


def listed(code: str, what: str) -> list[str]:
    (found,) = re.findall(rf"^- {what}: (.+)$", written_pages()[f"{code}.md"], re.M)
    return found.split(", ")


@pytest.mark.parametrize("code", CODES)
def test_the_bad_example_meets_with_what_its_page_quotes(code: str, run: Run) -> None:
    found = [each for each in written(code, "Bad").judged(run) if each["code"] == code]
    ((place, message),) = QUOTED.findall(section(code, "Bad"))
    said = {(each["pointer"] or "the whole file", _plain(each["message"])): each for each in found}
    assert (place, message) in said
    one = said[place, message]
    assert HELP.findall(section(code, "Bad")) == ([one["help"]] if one["help"] else [])
    assert f"- Effect: `{one['effect']}`" in written_pages()[f"{code}.md"]
    assert one["severity"] in listed(code, "Severity")[0].split(" or ")


def _plain(message: str) -> str:
    """A page does not name the line of a file that it shows."""
    return re.sub(r"args\.json:\d+", "TrainingArguments", message)


@pytest.mark.parametrize("code", CODES)
def test_the_good_example_passes(code: str, run: Run) -> None:
    found = written(code, "Good").judged(run)
    assert not [each for each in found if each["code"] == code or each["severity"] == "error"]


@pytest.mark.parametrize("code", CODES)
def test_a_fix_does_away_with_its_finding_and_brings_no_error(code: str, run: Run) -> None:
    example = written(code, "Bad")
    before = example.judged(run)
    fixable = [each for each in before if each["code"] == code and each["fix"]]
    if not fixable:
        return
    run(example.file, *example.flags, "--unsafe-fixes")
    after = example.judged(run)
    places = {(each["code"], each["pointer"]) for each in after}
    assert not places & {(code, each["pointer"]) for each in fixable}
    errors = {each["code"] for each in before if each["severity"] == "error"}
    assert {each["code"] for each in after if each["severity"] == "error"} <= errors


ELSEWHERE = {
    "DSC036": "dsengine notes other sizes than the one of the example",
    "DSC101": "transformers and accelerate fill the key of the example",
    "DSC102": "transformers and accelerate have another way with the key of the example",
    "DSC704": "accelerate stops over other values than the one of the example",
}
"""The example is for some of the programs that the page lists."""


@pytest.mark.parametrize("code", CODES)
def test_it_is_judged_for_the_programs_that_its_page_lists(code: str) -> None:
    """Asked alone; where only the view of all programs finds it, named in what is found."""
    example = rules()[code].bad
    together = [each for each in judge(example._replace(runtime=None)) if each.code == code]
    alone = {name: judge(example._replace(runtime=name)) for name in NAMES}
    meeting = [name for name, found in alone.items() if any(each.code == code for each in found)]
    if example.runtime is None:
        meeting = list(together[0].runtimes or NAMES)
    if code in ELSEWHERE:
        assert set(meeting) < set(listed(code, "Judged for"))
    else:
        assert meeting == listed(code, "Judged for")
