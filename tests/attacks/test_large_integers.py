"""Integers that Python cannot convert to a float, or not even to text, in every input."""

import base64
import json
import math
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from command_line import run
from dsconfig.source import read
from dsconfig.source.document import Document, Format

NINES = "9" * 400
LONGEST = "9" * 4300
UNREADABLE = "9" * 4301
"""More digits than Python parses."""
HEX = "0x" + "f" * 400
SEXAGESIMAL = "1" + ":59" * 300
PARSE_ERROR, RANGE_ERROR = "DSC002", "DSC013"
FACTS = dsconfig.gather(gpus=8, params="7B", seq_len=1024)


def batch(number: str) -> str:
    return f'{{"train_batch_size": {number}, "zero_optimization": {{"stage": 2}}}}'


def learning_rate(number: str) -> str:
    return (
        '{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": '
        f'{{"lr": {number}, "betas": [{number}, 0.9]}}}}}}'
    )


def in_yaml(number: str) -> str:
    return f"train_batch_size: {number}\nzero_optimization: {{stage: 2}}\n"


def in_trainer(number: str) -> str:
    return f"deepspeed:\n  train_batch_size: 8\n  zero_optimization: {{stage: {number}}}\n"


def beside(number: str) -> str:
    return f"max_steps: {number}\n{in_trainer('2')}"


def in_accelerate(number: str) -> str:
    launch = f"distributed_type: DEEPSPEED\nnum_processes: {number}\n"
    return f"{launch}deepspeed_config: {{zero_stage: 2}}\n"


def in_python(number: str) -> str:
    return f"ds = {{'train_batch_size': {number}, 'zero_optimization': {{'stage': 2}}}}\n"


TEXTS = [
    (Format.JSON, batch(NINES), RANGE_ERROR),
    (Format.JSON, batch(f"-{NINES}"), RANGE_ERROR),
    (Format.JSON, batch(LONGEST), RANGE_ERROR),
    (Format.JSON, batch(UNREADABLE), PARSE_ERROR),
    (Format.JSON, learning_rate(NINES), RANGE_ERROR),
    (Format.HJSON, f"train_batch_size: {NINES} # a comment\n", RANGE_ERROR),
    (Format.YAML, in_yaml(NINES), RANGE_ERROR),
    (Format.YAML, in_yaml(UNREADABLE), PARSE_ERROR),
    (Format.YAML, in_yaml(HEX), RANGE_ERROR),
    (Format.YAML, in_yaml("0x" + "f" * 6000), RANGE_ERROR),
    (Format.YAML, in_yaml("0b" + "1" * 2000), RANGE_ERROR),
    (Format.YAML, in_yaml(f"0{'7' * 800}"), RANGE_ERROR),
    (Format.YAML, in_yaml(SEXAGESIMAL), RANGE_ERROR),
    (Format.YAML, in_yaml("1" + ":59" * 100_000), PARSE_ERROR),
    (Format.YAML, in_yaml("9_" * 400 + "9"), RANGE_ERROR),
    (Format.YAML, in_trainer(HEX), RANGE_ERROR),
    (Format.YAML, beside(NINES), RANGE_ERROR),
    (Format.YAML, in_accelerate(NINES), RANGE_ERROR),
    (Format.YAML, "a: !!int ''\nzero_optimization: {stage: 2}\n", PARSE_ERROR),
    (Format.PYTHON, in_python("(10**100)**4"), RANGE_ERROR),
    (Format.PYTHON, in_python("0x" + "f" * 100_000), RANGE_ERROR),
    (Format.PYTHON, in_python(UNREADABLE), PARSE_ERROR),
    (Format.BASE64, base64.urlsafe_b64encode(batch(NINES).encode()).decode(), RANGE_ERROR),
]


def label(value: Any) -> str | None:
    return f"{value[:30]}_{len(value)}" if isinstance(value, str) and len(value) > 30 else None


@pytest.mark.parametrize(("form", "text", "code"), TEXTS, ids=label)
def test_large_integer_in_text_is_a_finding(form: Format, text: str, code: str) -> None:
    document = read(text, name="config", format=form)
    assert code in reported(document)


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["400", "-400", "5000"])
@pytest.mark.parametrize("key", ["train_batch_size", "gradient_clipping", "unknown"])
def test_large_integer_in_dict_is_a_finding(key: str, value: int) -> None:
    document = read({"train_batch_size": 8, key: value})
    assert RANGE_ERROR in reported(document)
    [found] = document.diagnostics
    assert found.pointer == f"/{key}" and f'"{key}"' in found.message


def reported(document: Document) -> list[str]:
    """Return the codes of ``validate``; ``resolve``, ``plan`` and ``diff`` refuse the config."""
    for runtime in ("dsengine", "deepspeed", "transformers", "accelerate"):
        report = dsconfig.validate(document, FACTS, runtime=runtime)
        resolution = dsconfig.resolve(document, FACTS, runtime=runtime)
        assert not resolution.ok
        assert not report.ok or runtime != "dsengine"
        with pytest.raises(ValueError, match="DSC0"):
            dsconfig.plan(resolution, FACTS)
        with pytest.raises(ValueError, match="DSC0"):
            dsconfig.estimate(resolution, FACTS)
    with pytest.raises(ValueError, match="cannot be compared"):
        dsconfig.diff(document, {"train_batch_size": 8})
    return [found.code for found in dsconfig.validate(document).diagnostics]


def test_largest_float_is_accepted() -> None:
    largest = int(math.ldexp(1 - 2**-53, 1024))
    assert dsconfig.validate({"train_batch_size": 8, "steps_per_print": largest}).ok


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("gpus", 10**400),
        ("nodes", 10**5000),
        ("seq_len", 10**300),
        ("micro_batch", 10**5000),
        ("total_steps", 2**63),
        ("params", 10**5000),
        ("device_memory", 10**5000),
        ("device_memory", "1e300"),
        ("learning_rate", 10**5000),
        ("lora_dropout", 10**5000),
        ("training_args", {"max_steps": 10**400}),
        ("training_args", {"unknown": [10**400]}),
        ("training_args", {"max_steps": 2**63}),
        ("accelerate_config", {"num_processes": 10**5000}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_large_argument_is_refused_by_name(argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{argument}: "):
        dsconfig.gather(
            **{"model": "gpt2", argument: value} if argument != "params" else {argument: value}
        )


@pytest.mark.parametrize("number", [NINES, LONGEST, UNREADABLE], ids=len)
@pytest.mark.parametrize(
    ("argument", "name", "text"),
    [
        ("model", "config.json", '{{"model_type": "llama", "hidden_size": {}}}'),
        ("training_args", "args.json", '{{"max_steps": {}}}'),
        ("training_args", "args.yaml", "max_steps: {}\n"),
        ("accelerate_config", "launch.yaml", "num_processes: {}\n"),
    ],
)
def test_large_integer_in_facts_file_is_refused(
    argument: str, name: str, text: str, number: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text.format(number))
    with pytest.raises(ValueError, match=rf"^{argument}: .*{name}"):
        dsconfig.gather(**{argument: file})  # pyright: ignore[reportArgumentType]


MODEL = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9}


@pytest.mark.parametrize("size", [2**63, 10**300])
@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "head_dim", "num_local_experts"])
def test_large_model_size_is_refused_by_key(key: str, size: int, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"hidden_size": 64, **MODEL, key: size}))
    with pytest.raises(ValueError, match=f"{key}|experts"):
        dsconfig.gather(model=file)


@pytest.mark.parametrize("runtime", ["dsengine", "deepspeed", "transformers"])
@pytest.mark.parametrize("sizes", [(1e308, 1), (1, 1e308), (1e308, 1e308), (10**300, 10**300)])
def test_product_of_large_numbers_is_refused(sizes: tuple[float, float], runtime: str) -> None:
    keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    config = {"zero_optimization": {"stage": 2}, **dict(zip(keys, sizes, strict=True))}
    for total in ({}, {"train_batch_size": 8}):
        resolution = dsconfig.resolve({**config, **total}, FACTS, runtime=runtime)
        with pytest.raises(ValueError, match=r"batch|micro"):
            dsconfig.plan(resolution, FACTS)


@pytest.mark.parametrize(
    "override",
    [
        f"train_batch_size={NINES}",
        f"train_batch_size={UNREADABLE}",
        f"zero_optimization.stage=[{NINES}]",
        f"optimizer.params.betas.{UNREADABLE}=1",
        "optimizer.params.betas.²=1",
    ],
    ids=label,
)
def test_large_override_is_a_usage_error(override: str, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(learning_rate("0.1"))
    done = run("validate", file, "--set", override)
    assert done.returncode == 2 and "--set" in done.stderr and len(done.stderr) < 400


@pytest.mark.parametrize(
    "flags",
    [
        ("--gpus", "9" * 5000),
        ("--params", "9" * 5000),
        ("--params", "1e999999999"),
        ("--device-memory", "9" * 400),
        ("--seq-len", "9" * 30),
        ("--with", f"torch=={'9' * 5000}.0"),
        ("--deepspeed-version", f"0.{'9' * 5000}"),
    ],
    ids=lambda flags: flags[0],
)
def test_large_flag_is_a_usage_error(flags: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(batch("8"))
    done = run("estimate" if flags[0] == "--seq-len" else "validate", file, *flags)
    assert done.returncode == 2 and flags[0] in done.stderr, done.stderr
