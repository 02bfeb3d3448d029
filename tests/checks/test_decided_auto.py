""" "auto" is judged as the value that TrainingArguments decide."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig.checks.registry import rules
from dsconfig.facts import gather
from dsconfig.reference.examples import facts_of
from dsconfig.schema.paths import KeyPath
from dsconfig.source.pointer import copied, is_block, value_at

ARGUMENTS = {
    "bf16.enabled": "bf16",
    "fp16.enabled": "fp16",
    "gradient_clipping": "max_grad_norm",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
}
"""The argument that fills in an "auto", by dotted path."""
FRACTION = (float, "train_micro_batch_size_per_gpu")
"""The argument must be an integer."""


def cases() -> Iterator[Any]:
    """Yield each example of a rule with a value that an argument decides."""
    for rule in rules().values():
        for label, example in (("bad", rule.bad), ("good", rule.good)):
            try:
                config: object = json.loads(example.config)
            except ValueError:
                continue
            if not is_block(config) or "training_args" in example.facts:
                continue
            for path in ARGUMENTS:
                value = value_at(config, KeyPath.parse(path), None)
                if type(value) in (bool, int, float) and (type(value), path) != FRACTION:
                    yield pytest.param(
                        example, config, path, value, id=f"{rule.code}-{label}-{path}"
                    )


def found(example: Any, config: dict[str, Any], arguments: dict[str, Any]) -> set[tuple[str, str]]:
    facts = facts_of(example.with_facts(training_args=arguments, gpus=example.facts.get("gpus", 8)))
    report = dsconfig.validate(config, facts, runtime="transformers", version=example.version)
    return {(each.code, each.pointer) for each in report.diagnostics}


@pytest.mark.parametrize(("example", "config", "path", "value"), list(cases()))
def test_auto_has_the_findings_of_its_value(
    example: Any, config: dict[str, Any], path: str, value: Any
) -> None:
    open_config = copied(config)
    key = KeyPath.parse(path)
    value_at(open_config, key.parent)[key.name] = "auto"
    arguments = {ARGUMENTS[path]: value}
    assert found(example, open_config, arguments) == found(example, config, arguments)


def test_gathering_that_transformers_turns_off_saves_no_weights() -> None:
    zero = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": "auto"}
    config = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": zero}
    facts = gather(training_args={"output_dir": "out", "per_device_train_batch_size": 1})
    report = dsconfig.validate(config, facts, runtime="transformers")
    assert "DSC403" in {found.code for found in report.diagnostics}


def test_precision_of_the_arguments_reaches_accelerates_file(tmp_path: Path) -> None:
    """TrainingArguments set the mixed precision before the Trainer records the dtype."""
    accelerate = tmp_path / "acc.yaml"
    accelerate.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\nmixed_precision: bf16\n"
        "deepspeed_config:\n  zero_stage: 3\n  zero3_init_flag: true\n"
    )
    facts = gather(training_args={"output_dir": "out", "bf16": True})
    for result in (
        dsconfig.validate(accelerate, facts, runtime="transformers"),
        dsconfig.resolve(accelerate, facts, runtime="transformers"),
    ):
        assert "DSC754" not in {found.code for found in result.diagnostics}
