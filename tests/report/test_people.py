"""The formats for terminals: full and concise."""

import io
import re

import pytest

import dsconfig
from dsconfig.report import FileReport, Report
from dsconfig.report.render import Look, render
from dsconfig.report.render.full import excerpt
from dsconfig.report.render.terminal import look_of, paint
from dsconfig.report.report import group_by_cause
from report.findings import FILES, IDLE, TEXT, WRONG, place

PLAIN = Look(color=False, width=80)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_full_shows_line_caret_effect_help_and_rule() -> None:
    text = render("full", [FileReport("a.json", TEXT, Report((WRONG,)))], PLAIN)
    assert text == (
        'error[DSC412]: stage is "three": DeepSpeed stops\n'
        " --> a.json:2:11\n"
        "  |\n"
        '2 |     "stage": "three", // \u4e2d\u6587\n'
        "  |              ^^^^^^^\n"
        "  = effect: refused: the program stops (deepspeed, dsengine)\n"
        "  = help: write 3\n"
        "  = fix: dsconfig can write this for you (--fix)\n"
        "  = rule: wrong-stage, see `dsconfig explain DSC412`\n"
    )


def test_full_marks_a_block_up_to_the_end_of_its_first_line() -> None:
    text = render("full", [FileReport("a.json", TEXT, Report((IDLE,)))], PLAIN)
    assert '3 |   "zero": {\n  |           ^\n' in text
    assert "(--unsafe-fixes)" in text


def test_full_without_position_or_text() -> None:
    text = render("full", FILES, PLAIN)
    assert "info[DSC001]: configs/a b,c:d.json: the file works as written\n" in text
    assert "refused after parsing" in text
    no_excerpt = render("full", [FileReport("a.json", None, Report((WRONG,)))], PLAIN)
    assert "|" not in no_excerpt


def test_control_characters_are_escaped() -> None:
    for form in ("full", "concise"):
        text = render(form, FILES, PLAIN)
        assert "\x1b" not in text and "\ud800" not in text
        assert "\\x1b[31m" in text


@pytest.mark.parametrize("width", [40, 60, 100])
def test_full_wraps_to_the_width(width: int) -> None:
    line = '{"k": "' + "x" * 300 + '", "stage": 9, "y": "' + "z" * 300 + '"}'
    found = Report((WRONG,))
    wide = FileReport("a.json", "\n" + line, found)
    text = render("full", [wide], Look(width=width))
    assert max(len(each) for each in text.splitlines()) <= max(width, 60)


def test_long_line_is_truncated_around_the_caret() -> None:
    line = "a" * 200 + "HERE" + "b" * 200
    shown, caret = excerpt(line, place(1, 201, 1, 205), 60)
    at = caret.index("^")
    assert shown[at : at + 4] == "HERE" and caret.strip() == "^^^^"
    assert shown.startswith("...") and shown.endswith("...") and len(shown) <= 60


def test_carets_align_with_wide_and_combining_characters() -> None:
    shown, caret = excerpt("\u4e2de\u0301\t\x07x", place(1, 6, 1, 7), 60)
    assert shown == "\u4e2de\u0301    \u00b7x"
    assert caret == " " * 8 + "^"


def test_position_after_the_line_is_marked_at_its_end() -> None:
    assert excerpt("ab", place(1, 9, 1, 9), 60) == ("ab", "  ^")


def test_concise_prints_one_line_per_finding() -> None:
    assert render("concise", FILES, PLAIN).splitlines() == [
        'configs/a b,c:d.json:2:11: DSC412 error: stage is "three": DeepSpeed stops',
        "configs/a b,c:d.json:3:11: DSC420 warning: zero has no effect\\n100%, really: \\x1b[31m",
        "configs/a b,c:d.json: DSC001 info: the file works as written",
        "configs/a b,c:d.json: DSC601 error: lone \\ud800 surrogate",
    ]


def test_severity_determines_the_color() -> None:
    text = render("concise", FILES, Look(color=True))
    assert "\x1b[1;31mDSC412 error\x1b[0m" in text
    assert "\x1b[1;31m" in render("full", FILES, Look(color=True))
    assert paint("", "frame", Look(color=True)) == ""


@pytest.mark.parametrize(
    ("environment", "terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": ""}, False, False),
    ],
)
def test_color_follows_environment_and_terminal(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    terminal: bool,
    expected: bool,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert look_of(Terminal() if terminal else io.StringIO()).color is expected


def test_columns_sets_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert look_of(io.StringIO()).width == 72


def test_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="choose one of full, concise, json"):
        render("xml", [])


def test_default_look_is_that_of_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in render("concise", FILES)


def test_findings_without_a_key_are_listed_by_line_once() -> None:
    text = "{" + "".join(f"\nkey {number} is not valid" for number in range(12)) + "\n}"
    (cause,) = (
        cause
        for cause in group_by_cause(dsconfig.validate(text, runtime="deepspeed").diagnostics)
        if cause.first.code == "DSC002"
    )
    assert len(cause.others) > 5
    assert re.fullmatch(r"lines 3, 4, 5, 6, 7 and \d+ more", cause.also), cause.also
