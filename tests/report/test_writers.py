"""Each writer returns text that a parser of the language reads back as the same text."""

import ast
import html.parser
import json
import math
import re
import subprocess
import tomllib
from typing import Any

import pytest
import yaml as yaml_1_1
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from ruamel.yaml import YAML

from dsconfig.report import writers
from hostile import HOSTILE, SURROGATES, texts
from report.findings import read_sarif

MARKDOWN = MarkdownIt("commonmark").enable("table").enable("strikethrough")
LINE_ENDS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def hostile(test: Any) -> Any:
    """Run a test with each hostile text, and with random ones."""
    for text in HOSTILE:
        test = example(text)(test)
    return given(texts())(test)


@hostile
def test_comment_is_one_comment_in_every_language(text: str) -> None:
    for line in (writers.comment(text), writers.comment_of_value(text, [text])):
        assert not LINE_ENDS.search(line)
        assert ast.dump(ast.parse(f"{line}\nx = 1")) == ast.dump(ast.parse("x = 1"))
        assert tomllib.loads(f"{line}\nx = 1\n") == {"x": 1}
        for read in (YAML(typ="safe", pure=True).load, yaml_1_1.safe_load):
            assert read(f"{line}\nx: 1\n") == {"x": 1}


@hostile
def test_comment_of_a_value_names_both(text: str) -> None:
    name, _, value = writers.comment_of_value(text, {"a": text}).partition(" = ")
    if "=" not in text:
        shown = name.removeprefix("#   ")
        assert (json.loads(shown) if shown.startswith('"') else shown) == text
        assert json.loads(value) == {"a": text}


@hostile
def test_python_literal_and_docstring(text: str) -> None:
    value = {text: [text, 1, 2.5, True, None, (text, -1)]}
    assert ast.literal_eval(writers.python(value)) == value
    assert ast.literal_eval(f'"""{writers.docstring(text)}"""') == text


def test_python_literal_of_numbers_that_have_none() -> None:
    given = [math.inf, -math.inf, {"a": math.nan}]
    inf, minus, other = eval(writers.python(given), {"float": float})
    assert (inf, minus) == (math.inf, -math.inf) and math.isnan(other["a"])
    with pytest.raises(ValueError, match="no Python literal"):
        writers.python([object()])


@given(st.dictionaries(texts(), texts() | st.integers(-9, 9) | st.floats(allow_nan=False)))
def test_toml(values: dict[str, Any]) -> None:
    assert tomllib.loads(writers.toml({"section": values})) == {"section": values}


@hostile
def test_yaml_is_the_same_in_both_versions(text: str) -> None:
    entries = {text: text, "list": [text, 1, True, None, 2.5], "block": {text: [text]}}
    written = writers.yaml(entries)
    assert YAML(typ="safe", pure=True).load(written) == entries
    assert yaml_1_1.safe_load(written) == entries


@pytest.mark.parametrize("text", SURROGATES)
def test_yaml_refuses_what_is_not_unicode(text: str) -> None:
    with pytest.raises(ValueError):
        writers.yaml({"a": text})


def test_shell_passes_each_argument() -> None:
    words = [text for text in HOSTILE if "\0" not in text]
    command = writers.shell(["printf", "%s\\0", *words])
    out = subprocess.run(["sh", "-c", command], check=True, capture_output=True).stdout
    assert out.decode().split("\0")[:-1] == words


@hostile
def test_kubernetes_expands_nothing(text: str) -> None:
    # Its rule: "$$" becomes "$"; "$(NAME)" is replaced; any other "$" stays.
    written = writers.kubernetes(text)
    assert re.sub(r"\$(\$|\(\w+\))", lambda at: "$" if at[1] == "$" else "?", written) == text


def _inline(markdown: str) -> list[tuple[str, str]]:
    """Return type and content of the inline tokens of a document of one paragraph."""
    opening, inline, closing = MARKDOWN.parse(markdown)
    assert (opening.type, closing.type) == ("paragraph_open", "paragraph_close")
    return [(each.type, each.content) for each in inline.children or []]


@hostile
def test_code_is_one_code_span(text: str) -> None:
    tokens = _inline(f"a {writers.code(text)} b")
    if "|" in text:
        kinds = [kind for kind, _ in tokens]
        assert set(kinds) == {"text", "text_special", "html_inline"} - ({"text_special"} - {*kinds})
        shown = "".join(content for kind, content in tokens if kind != "html_inline")
        assert shown == f"a {writers.one_line(text)} b"
    else:
        assert [kind for kind, _ in tokens] == ["text", "code_inline", "text"]
        assert tokens[1][1].strip() == writers.one_line(text).strip()


@hostile
def test_markdown_is_text(text: str) -> None:
    tokens = _inline(f"a {writers.markdown(text)}")
    assert {kind for kind, _ in tokens} <= {"text", "text_special"}
    shown = "".join(content for _, content in tokens)
    assert (
        shown.replace("\u200b", "") == f"a {writers.one_line(text)}".replace("\u200b", "").rstrip()
    )
    assert not re.search(r"@\w|https?://|www\.|#\d", shown)


@hostile
def test_cells_of_a_table(text: str) -> None:
    for cell in (writers.code(text), writers.markdown(text)):
        tokens = MARKDOWN.parse(f"| a | b |\n| --- | --- |\n| {cell} | last |")
        cells = [each for each in tokens if each.type == "inline"]
        assert len(cells) == 4 and cells[-1].content == "last"


@hostile
def test_markdown_at_the_start_of_a_line(text: str) -> None:
    tokens = MARKDOWN.parse(writers.markdown(text.strip()))
    assert {each.type for each in tokens} <= {"paragraph_open", "inline", "paragraph_close"}


@hostile
def test_code_block_ends_at_its_fence(text: str) -> None:
    fence, paragraph, *_ = MARKDOWN.parse(f"{writers.code_block(text)}\n\nend")
    assert (fence.type, paragraph.type) == ("fence", "paragraph_open")
    assert fence.content == f"{writers.visible(text)}\n"


class _Collected(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


@hostile
def test_html_is_content_and_attribute(text: str) -> None:
    page = _Collected()
    page.feed(f'<p title="{writers.html(text)}">{writers.html(text)}</p>')
    page.close()
    shown = writers.one_line(text)
    assert page.tags == [("p", [("title", shown)])]
    assert page.text == shown


@hostile
def test_json_in_a_script_element(text: str) -> None:
    written = writers.json_in_html({text: text})
    assert json.loads(written) == {text: text}
    assert "<" not in written


@pytest.mark.parametrize("text", [*HOSTILE, *SURROGATES])
def test_json_text_has_no_control_characters(text: str) -> None:
    written = writers.json_text({"a": [text]})
    assert json.loads(written) == {"a": [text]}
    assert not any(map(writers.is_control, written.replace("\n", "")))
    assert "##[" not in written


def _read_command(line: str) -> tuple[str, dict[str, str], str]:
    """Read a workflow command as the runner of GitHub does."""
    head, _, text = line.removeprefix("::").partition("::")
    name, _, listed = head.partition(" ")
    read = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}

    def unescaped(text: str) -> str:
        return re.sub("%(0D|0A|3A|2C|25)", lambda at: read[at[0]], text)

    properties = dict(each.split("=", 1) for each in listed.split(","))
    return name, {key: unescaped(value) for key, value in properties.items()}, unescaped(text)


@hostile
def test_workflow_command(text: str) -> None:
    line = writers.workflow_command("error", {"file": text, "title": "a"}, text)
    assert not LINE_ENDS.search(line)
    name, properties, message = _read_command(line)
    assert name == "error" and set(properties) == {"file", "title"}
    if not any(writers.is_control(each) for each in text if each not in "\r\n"):
        assert (properties["file"], message) == (text, text)


@hostile
def test_printed_lines_are_no_commands(text: str) -> None:
    shown = writers.harmless_in_ci(writers.visible(text))
    assert "##[" not in shown
    assert not any(line.strip().startswith("::") for line in shown.split("\n"))


@pytest.mark.parametrize("text", [*HOSTILE, *SURROGATES])
def test_terminal_line_has_no_control_characters(text: str) -> None:
    shown = writers.one_line(text)
    assert not any(map(writers.is_control, shown))
    shown.encode()
    assert writers.visible(text).count("\n") == text.count("\n")


@hostile
@example("[x](1)")
@example("\\[x\\](1)")
@example("[a[b](1)](2)")
@example("\\](")
def test_sarif_message_has_no_link(text: str) -> None:
    for message in (text, f"[{text}](1)", f"[x]({text})"):
        assert read_sarif(writers.sarif(message)) == (message, [])


def test_link_of_a_sarif_message_is_read() -> None:
    assert read_sarif(r"see [a\[0\]](1)") == ("see a[0]", ["1"])


def test_plot_label_is_drawn_as_text() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    for text in HOSTILE:
        axes.plot([0, 1], label=writers.plot_label(text))
        drawn = axes.set_title(writers.plot_label(text))
        shown, is_math = drawn._preprocess_math(drawn.get_text())
        assert not is_math
        assert shown.strip() == writers.one_line(text).strip()
    shown = [each.get_text() for each in axes.legend().get_texts()]
    assert len(shown) == len([text for text in HOSTILE if text])
