"""The library: names, introduction, functions, short and HTML representations."""

import builtins
import pydoc
import re
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dsconfig
from dsconfig.commands.app import app
from dsconfig.facts.request import DECLARED
from dsconfig.project import inference

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}


@pytest.fixture(scope="module")
def facts() -> dsconfig.Facts:
    return dsconfig.gather(gpus=2, device="a100-80gb", model="gpt2", seq_len=512)


def test_dir_lists_functions_and_the_types_they_name() -> None:
    names = dir(dsconfig)
    functions = "diff estimate explain gather plan read resolve tune validate"
    assert set(functions.split()) <= set(names) <= set(dsconfig.__all__)
    values = {name: getattr(dsconfig, name) for name in names}
    assert all(map(callable, values.values()))
    texts = [
        f"{value.__doc__} {signature(value)}" for name, value in values.items() if name.islower()
    ]
    types = {name for name in names if isinstance(values[name], type)}
    assert {"Facts", "FactError", "Report", "Resolution", "Estimate", "Plan"} <= types
    unused = {name for name in types if not re.search(rf"\b{name}\b", " ".join(texts))}
    assert not unused


def test_help_introduces_the_functions() -> None:
    text = pydoc.plain(pydoc.render_doc(dsconfig))
    for name in ("validate", "gather", "resolve", "estimate", "plan", "tune", "explain", "diff"):
        assert f"dsconfig.{name}(" in text and f"\n    {name}(" in text


def test_every_public_function_has_a_docstring() -> None:
    for name in dir(dsconfig):
        assert getattr(dsconfig, name).__doc__, name


def test_help_lists_the_arguments_of_gather() -> None:
    assert list(signature(dsconfig.gather).parameters) == list(DECLARED)


def test_gather_rejects_unknown_and_positional_arguments() -> None:
    gather: Any = dsconfig.gather
    with pytest.raises(TypeError, match=r"gather\(\) got an unexpected argument 'gpu'"):
        gather(gpu=2)
    with pytest.raises(TypeError, match="unexpected positional argument"):
        gather(2)


def test_tune_ranks_candidates(facts: dsconfig.Facts) -> None:
    best = dsconfig.tune(facts)[0]
    assert not best.reason
    assert dsconfig.validate(best.config, facts, runtime="dsengine").ok


def test_tune_infers_the_program_as_the_command_does() -> None:
    given: dict[str, Any] = {"gpus": 2, "device": "a100-80gb", "model": "gpt2", "seq_len": 1024}
    for more, expected in (
        ({}, "deepspeed"),
        ({"training_args": {"bf16": True}}, "transformers"),
        ({"accelerate_config": {"mixed_precision": "bf16"}}, "accelerate"),
    ):
        facts = dsconfig.gather(**{**given, **more})
        inferred = dsconfig.tune(facts)
        assert inferred == dsconfig.tune(facts, runtime=expected)
        assert inference.target_program(None, None, facts=facts).runtime.name == expected


def test_facts_and_candidates_have_short_complete_reprs() -> None:
    facts = dsconfig.gather(
        gpus=8,
        device="a100-80gb",
        model="llama-3-8b",
        seq_len=4096,
        micro_batch=2,
        lora_rank=16,
        base_weights="4bit",
        host_memory="512GiB",
        precision="bf16",
        training_args={"optim": "adamw_8bit"},
    )
    for text in (
        "trainable=4.19e+07, base_weights=4bit",
        "micro_batch=2, seq_len=4096, precision=bf16",
        "training_args=1 argument",
        "host_memory=512.0 GiB",
    ):
        assert text in repr(facts)
    best, *_, worst = dsconfig.tune(facts)
    assert repr(best).startswith(f"<Candidate: {best.label}: ") and "per GPU" in repr(best)
    assert worst.reason in repr(worst)
    assert max(map(len, map(repr, (facts, best, worst)))) <= 300


def test_exceptions_named_in_docstrings_are_public() -> None:
    texts = [getattr(dsconfig, name).__doc__ for name in dir(dsconfig)]
    named = {word for text in texts for word in re.findall(r"\b[A-Z]\w+Error\b", text)}
    assert {"FactError", "PlanError"} <= named
    assert all(hasattr(dsconfig, name) or hasattr(builtins, name) for name in named)


def test_explain_returns_the_text_of_the_command(tmp_path: Path) -> None:
    assert dsconfig.explain("overlap_comm").startswith("zero_optimization.overlap_comm\n")
    assert dsconfig.explain("DSC404").startswith("# DSC404")
    path = tmp_path / "ds.json"
    path.write_text('{"gradient_clipping": 1}')
    assert "1: gradient_clipping = 1" in dsconfig.explain(str(path))
    with pytest.raises(ValueError, match="did you mean zero_optimization"):
        dsconfig.explain("zero")


def test_diff_compares_configs_and_releases() -> None:
    other = {**CONFIG, "gradient_clipping": 0.5}
    assert [change.pointer for change in dsconfig.diff(CONFIG, other)] == ["/gradient_clipping"]
    assert dsconfig.diff(CONFIG, dict(CONFIG)) == ()
    upgrade = dsconfig.diff({"train_batch_size": 8}, from_version="0.14.4", to_version="0.19.8")
    assert "/gradient_clipping" in {change.pointer for change in upgrade}
    with pytest.raises(ValueError, match="from_version"):
        dsconfig.diff(CONFIG)  # pyright: ignore[reportCallIssue]


def test_representations_are_short_and_html(facts: dsconfig.Facts) -> None:
    resolution = dsconfig.resolve(CONFIG, facts)
    shown = (
        dsconfig.validate({"train_batch_size": 8, "zero_optimisation": {}}),
        resolution,
        dsconfig.estimate(resolution, facts),
        dsconfig.plan(resolution, facts),
    )
    for value in shown:
        assert len(repr(value)) <= 200, repr(value)
        assert repr(value).startswith(f"<{type(value).__name__}")
        html = value._repr_html_()
        assert html.startswith("<table") and html.endswith("</table>")
    (option,) = dsconfig.estimate(resolution, facts).options
    assert len(repr(option)) <= 250 and "peak in" in repr(option.device)
    report = dsconfig.validate({"train_batch_size": 8, "a<b": 1})
    assert "a&lt;b" in report._repr_html_()
    assert len(repr(facts)) <= 300, repr(facts)


def test_missing_facts_name_arguments_in_python_and_flags_on_the_command_line() -> None:
    resolution = dsconfig.resolve(CONFIG, dsconfig.gather(gpus=2), runtime="deepspeed")
    with pytest.raises(ValueError, match="specify model= or params="):
        dsconfig.estimate(resolution, dsconfig.gather(gpus=2))
    with pytest.raises(ValueError, match="specify device= or device_memory="):
        dsconfig.tune(dsconfig.gather(gpus=2, model="gpt2"))
    done = CliRunner().invoke(app, ["tune", "--model", "gpt2", "--seq-len", "128"])
    assert "--gpus" in f"{done.exception}" and "gpus=" not in f"{done.exception}"


def test_errors_with_findings_name_arguments() -> None:
    config = {"train_batch_size": "auto"}
    for runtime, call in (
        ("transformers", dsconfig.estimate),
        ("transformers", dsconfig.plan),
        ("dsengine", dsconfig.plan),
    ):
        resolution = dsconfig.resolve(config, runtime=runtime)
        with pytest.raises(ValueError, match=r"DSC150 .*: specify gpus=") as caught:
            call(resolution, dsconfig.gather(model="gpt2"))
        assert "--" not in str(caught.value)
