"""``validate``, ``resolve`` and ``plan`` give one verdict on every example of every rule."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import command_line
import dsconfig
from dsconfig import Effect
from dsconfig.checks.registry import rules
from dsconfig.checks.rule import Example
from dsconfig.examination import MISSING_FACT
from dsconfig.reference.examples import facts_of, flags_of
from dsconfig.runtimes.base import NAMES
from dsconfig.source import Document

EXAMPLES = [
    pytest.param(example.with_facts(**{"gpus": 8, **example.facts}), id=f"{rule.code}-{label}")
    for rule in rules().values()
    for label, example in (("bad", rule.bad), ("good", rule.good))
    if example.runtime == "deepspeed"
]
"""With 8 ranks where the example does not need another number: DeepSpeed knows its ranks."""


NOT_PLANNED = {
    rules()["DSC008"].bad.config: "a template has no batch yet",
    rules()["DSC204"].bad.config: "a plan has whole samples, DeepSpeed computes with 2.5",
}
"""Configs that DeepSpeed accepts and that have no plan."""


def refused(diagnostics: Sequence[dsconfig.Diagnostic]) -> bool:
    return any(found.effect is Effect.REFUSED for found in diagnostics)


def document_of(example: Example) -> Document:
    return dsconfig.read(example.config, name=example.name)


def test_deepspeed_has_hundreds_of_examples() -> None:
    assert len(EXAMPLES) > 350


@pytest.mark.parametrize("example", EXAMPLES)
def test_library_gives_one_verdict(example: Example) -> None:
    document, facts = document_of(example), facts_of(example)
    program = {"runtime": "deepspeed", "version": example.version}
    report = dsconfig.validate(document, facts, **program)
    resolution = dsconfig.resolve(document, facts, **program)
    verdicts = {
        "validate": refused(report.diagnostics),
        "resolve": refused(resolution.diagnostics),
    }
    if example.config not in NOT_PLANNED:
        try:
            verdicts["plan"] = not dsconfig.plan(resolution, facts)
        except ValueError:
            verdicts["plan"] = True
    assert len(set(verdicts.values())) == 1, (verdicts, resolution.diagnostics)


@pytest.mark.parametrize("example", EXAMPLES[1::25])
def test_commands_give_one_verdict(example: Example, tmp_path: Path) -> None:
    file = tmp_path / example.name
    file.write_text(example.config)
    flags = flags_of(example).split()
    verdicts = {command: stops(command, file, flags) for command in ("validate", "resolve", "plan")}
    assert len(set(verdicts.values())) == 1, verdicts


def stops(command: str, file: Path, flags: list[str]) -> bool:
    """Return whether a command reports that the program stops, or cannot read the file."""
    done = command_line.run(command, file, *flags, "--output-format", "json")
    if done.returncode == 2 or not done.stdout.startswith("{"):
        return True
    result = json.loads(done.stdout)
    found = result.get("files", [result])[0].get("diagnostics", [])
    return any(each["effect"] == "refused" for each in found)


@pytest.mark.parametrize(
    ("runtime", "stops"), [("deepspeed", True), ("transformers", False), ("accelerate", False)]
)
def test_duplicate_key_has_one_verdict_per_program(runtime: str, stops: bool) -> None:
    """Strict-JSON readers keep the last value."""
    twice = '"gradient_clipping": 1.0, "gradient_clipping": 1.0'
    text = f'{{"train_micro_batch_size_per_gpu": 8, "zero_optimization": {{}}, {twice}}}'
    facts = dsconfig.gather(gpus=1)
    assert refused(dsconfig.validate(text, facts, runtime=runtime).diagnostics) is stops
    assert refused(dsconfig.resolve(text, facts, runtime=runtime).diagnostics) is stops


@pytest.mark.parametrize("runtime", NAMES)
def test_every_program_has_the_errors_of_validate_when_resolved(runtime: str) -> None:
    for rule in rules().values():
        for example in (rule.bad, rule.good):
            document, facts = document_of(example), facts_of(example)
            if document.is_template:
                continue  # it has no values to resolve
            program = {"runtime": runtime, "version": example.version}
            errors = dsconfig.validate(document, facts, **program).errors
            resolved = dsconfig.resolve(document, facts, **program).diagnostics
            reported = {
                (each.code, each.pointer)
                for each in resolved
                if each.severity is dsconfig.Severity.ERROR and each.code != MISSING_FACT
            }
            assert reported == {(each.code, each.pointer) for each in errors}, rule.code


CORPUS = sorted((Path(__file__).parents[1] / "oracle" / "corpus").glob("*.json"))
ARGUMENTS: list[dict[str, object]] = [
    {"bf16": True, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8},
    {"fp16": True, "learning_rate": 3e-4, "max_grad_norm": 0.3, "warmup_steps": 100},
    {"warmup_ratio": 0.1, "optim": "adafactor", "gradient_checkpointing": True},
]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_public_files_have_one_verdict_with_any_arguments(path: Path) -> None:
    """The errors of ``resolve`` are those of ``validate``, apart from missing facts."""
    document = dsconfig.read(path)
    for arguments in ARGUMENTS:
        facts = dsconfig.gather(gpus=8, model="llama-3.2-1b", training_args=arguments)
        for program in ("transformers", "accelerate", "deepspeed"):
            report = dsconfig.validate(document, facts, runtime=program)
            result = dsconfig.resolve(document, facts, runtime=program)
            found = {
                (each.code, each.pointer)
                for each in result.diagnostics
                if each.effect is Effect.REFUSED and each.code != MISSING_FACT
            }
            assert found == {(each.code, each.pointer) for each in report.refusals}, program
