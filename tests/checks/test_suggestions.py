"""Suggestions for unknown keys, and their limit for files of another kind."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import dsconfig
from dsconfig.checks.context import MOST_COMPARED
from dsconfig.schema import spelling
from dsconfig.source import layout, positions

MANY = 5 * MOST_COMPARED


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the names compared with all known names."""
    compared: list[str] = []
    closest = spelling.closest

    def counted(name: str, known: tuple[str, ...]) -> str | None:
        compared.append(name)
        return closest(name, known)

    monkeypatch.setattr(spelling, "closest", counted)
    yield compared


def findings(names: Iterator[str], template: str) -> list[dsconfig.Diagnostic]:
    entries = ",\n".join(f"{json.dumps(name)}: 1" for name in names)
    found = dsconfig.validate(template.replace("ENTRIES", entries)).diagnostics
    return [each for each in found if each.code in ("DSC021", "DSC603", "DSC633")]


def names() -> Iterator[str]:
    return (f"wall_clock_breakdow{number}" for number in range(MANY))


@pytest.mark.parametrize(
    "template",
    [
        '{"train_batch_size": 8,\nENTRIES}\n',
        '{"train_batch_size": 8, "zero_optimization": {\nENTRIES}}\n',
        '{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {\nENTRIES}}}\n',
        '{"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {\nENTRIES}}}\n',
    ],
    ids=["root", "block", "optimizer", "scheduler"],
)
def test_number_of_spelling_comparisons_is_limited(template: str, comparisons: list[str]) -> None:
    assert len(findings(names(), template)) == MANY
    assert len(comparisons) == MOST_COMPARED


def test_first_unknown_keys_have_suggestions() -> None:
    found = findings(names(), '{"train_batch_size": 8,\nENTRIES}\n')
    helps = [each.help for each in found]
    assert helps[:MOST_COMPARED] == ['did you mean "wall_clock_breakdown"?'] * MOST_COMPARED
    assert set(helps[MOST_COMPARED:]) == {"delete it, or look up its current name"}
    assert {each.severity for each in found} == {dsconfig.Severity.ERROR}


def test_line_index_is_built_once_for_all_fixes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = count()

    class Counted(positions.LineIndex):
        def __init__(self, text: str) -> None:
            next(made)
            super().__init__(text)

    monkeypatch.setattr(positions, "LineIndex", Counted)
    entries = ",\n".join(f'"_remark{number}": 1' for number in range(50))
    text = f'{{"train_batch_size": 8, "zero_optimization": {{\n{entries}\n}}}}\n'
    found = dsconfig.validate(text).diagnostics
    assert sum(each.fix is not None for each in found) == 50
    assert next(made) <= 4  # one of the text, two while all fixes are applied together
    assert layout.line_index is positions.line_index


@pytest.mark.parametrize(
    ("name", "code", "help"),
    [
        ("seed", "DSC021", "a TrainingArgument"),
        ("aio_block_size", "DSC021", 'write it as "block_size" in aio'),
    ],
)
def test_foreign_top_level_name_has_specific_help(name: str, code: str, help: str) -> None:
    """A setting of scripts that is also a key of a block; a block and key joined."""
    diagnostics = dsconfig.validate({"train_batch_size": 8, name: 5}).diagnostics
    (found,) = (each for each in diagnostics if each.pointer == f"/{name}")
    assert found.code == code
    assert found.help is not None and help in found.help


def test_key_of_later_release_is_reported_once() -> None:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "leaf_module": None}}
    diagnostics = dsconfig.validate(config, version="0.9.1").diagnostics
    assert [each.code for each in diagnostics if each.pointer.endswith("leaf_module")] == ["DSC811"]


def test_name_with_another_word_is_suggested_only_if_the_value_fits() -> None:
    (wrong,) = codes_and_helps({"train_batch_size": 8, "gradient_accumulation_fusion": True})
    assert wrong[0] == "DSC021" and "gradient_accumulation_steps" not in str(wrong[1])
    close, *_ = codes_and_helps({"train_micro_batch_size_per_device": 8})
    assert close == ("DSC021", 'did you mean "train_micro_batch_size_per_gpu"?')


@pytest.mark.parametrize(
    ("name", "meant", "value"),
    [
        ("offload_params", "offload_param", {"device": "cpu"}),
        ("offload_optimizers", "offload_optimizer", {"device": "cpu"}),
        ("sub_group_sizes", "sub_group_size", 1e9),
        ("overlap_com", "overlap_comm", 5),
        ("reduce_bucket_siz", "reduce_bucket_size", "large"),
    ],
)
def test_another_ending_is_a_misspelling_whatever_the_value(
    name: str, meant: str, value: object
) -> None:
    zero = {"stage": 3, name: value}
    assert ("DSC021", f'did you mean "{meant}"?') in codes_and_helps(
        {"train_batch_size": 8, "zero_optimization": zero}
    )


@pytest.mark.parametrize("block", ["auto", {"enabled": "auto"}])
def test_a_block_that_is_refused_by_name_has_one_finding(block: object) -> None:
    assert [code for code, _ in codes_and_helps({"train_batch_size": 8, "amp": block})] == [
        "DSC801"
    ]


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("config_file: ds.json", 'write it as "deepspeed_config_file"'),
        (
            "train_batch_size: 8",
            'write it in a ds_config, and name that file in "deepspeed_config_file"',
        ),
        ("zero_stge: 2", 'did you mean "zero_stage"?'),
    ],
)
def test_the_help_for_an_accelerate_setting_names_the_file_of_the_config(
    line: str, help: str, tmp_path: Path
) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(f"distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  {line}\n")
    found = dsconfig.validate(path, runtime="accelerate").diagnostics
    assert help in [each.help for each in found if each.code == "DSC705"]


def codes_and_helps(config: dict[str, object]) -> list[tuple[str, str | None]]:
    found = dsconfig.validate(config, runtime="deepspeed").errors
    return [(each.code, each.help) for each in found]
