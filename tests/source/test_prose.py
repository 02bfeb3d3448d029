"""Input that is not quite JSON: text around a config, Python literals, NaN and Infinity."""

import json
import math

import pytest

import dsconfig
from dsconfig.facts import gather

PROSE = """Hi all, here is my config: it says "oops".

Please help, thanks!

{
  "train_batch_size": 8,
  "fp16": {"enabled": true}
}

Regards
"""
ONE_LINE = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, %s}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PROSE, "not JSON; an object starts at line 5"),
        (f"```json\n{PROSE}", "not JSON; an object starts at line 6"),
        ('log: {"a": 1} x\nmore: {\n{"stage": 2\n  }\n', "not JSON; an object starts at line 3"),
        (
            "Dear team,\n\nit fails. No config here: sorry\n",
            "not JSON: the text contains no object",
        ),
    ],
)
def test_prose_reports_one_finding_with_line_of_object(text: str, message: str) -> None:
    (found,) = dsconfig.read(text).diagnostics
    assert (found.code, found.message) == ("DSC002", message)


def test_config_without_braces_keeps_detailed_errors() -> None:
    document = dsconfig.read("train_batch_size: 8\nfp16: {\n  enabled: true\n  ]\n}\n")
    assert all(not found.message.startswith("not JSON") for found in document.diagnostics)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"fp16": {"enabled": True}}', "DSC002"),
        ('{"train_batch_size": 8, "prescale_gradients": False}', "DSC002"),
        ('{\n"prescale_gradients": True,\n"train_batch_size": 8}', "DSC006"),
        ('{\n"communication_data_type": None,\n"train_batch_size": 8}', "DSC006"),
    ],
)
def test_python_literal_is_named(text: str, code: str) -> None:
    (found,) = dsconfig.read(text).diagnostics
    word = next(word for word in ("True", "False", "None") if word in text)
    json_word = {"True": "true", "False": "false", "None": "null"}[word]
    assert found.code == code and found.fix is not None
    assert found.message.startswith(f"Python literal {word}; JSON uses {json_word}")


def test_python_literal_is_named_for_strict_json() -> None:
    document = dsconfig.read('{\n"prescale_gradients": True\n}')
    assert document.json_error is not None
    assert document.json_error.message == "the Python literal True"


@pytest.mark.parametrize("runtime", ["transformers", "accelerate"])
@pytest.mark.parametrize("word", ["Infinity", "-Infinity", "NaN"])
def test_number_words_are_numbers_for_strict_json_programs(runtime: str, word: str) -> None:
    """Python's ``json`` reads them; HJSON reads a string up to the end of the line."""
    text = ONE_LINE % f'"gradient_clipping": 1.0, "steps_per_print": {word}'
    report = dsconfig.validate(text, runtime=runtime)
    assert not {"DSC002", "DSC007"} & {found.code for found in report.diagnostics}
    at_key = [f for f in report.diagnostics if f.pointer == "/steps_per_print"]
    if word == "Infinity":  # accelerate writes it to print nothing
        assert not at_key
        return
    (found,) = at_key
    assert word in found.message and found.range is not None
    assert text[found.range.start.column - 1 :].startswith(word)
    facts = gather(gpus=1, micro_batch=1)
    resolved = dsconfig.resolve(text, facts, runtime=runtime).config
    assert resolved["zero_optimization"]["stage"] == json.loads(text)["zero_optimization"]["stage"]


def test_number_word_is_a_syntax_error_for_deepspeed() -> None:
    (found,) = dsconfig.validate(
        ONE_LINE % '"steps_per_print": Infinity', runtime="deepspeed"
    ).diagnostics
    assert found.code == "DSC002" and found.message.startswith("Infinity is not a JSON number")


def test_override_of_number_word_is_kept() -> None:
    from dsconfig.source import strict, with_overrides

    text = '{\n"gradient_clipping": Infinity,\n"steps_per_print": NaN\n}'
    document = with_overrides(dsconfig.read(text), ["steps_per_print=5"])
    value = strict.as_strict_json_reads(document).value
    assert value == {"gradient_clipping": math.inf, "steps_per_print": 5}


def test_markdown_page_is_prose_with_one_finding() -> None:
    block = "<!-- run: -->\n```yaml\ngradient_accumulation_steps: 4\n```\n"
    document = dsconfig.read(f"# Train\n\nGoal: train `${{MODEL}}`.\n\n{block}{block}")
    assert [found.code for found in document.diagnostics] == ["DSC002"]
    assert not document.is_template
