"""A message names facts as the reader states them, on each surface."""

import re
from pathlib import Path

import pytest

import dsconfig
from dsconfig.facts.naming import Surface, label_of, named, read_on, subject

SAMPLES = {
    Surface.COMMAND_LINE: ("--gpus", "--gpus 8", "--base-weights 4bit", "--deepspeed-version"),
    Surface.LIBRARY: ("gpus=", "gpus=8", 'base_weights="4bit"', "version="),
    Surface.SETTINGS: (
        "the setting devices",
        "the setting devices",
        "--base-weights 4bit",
        "the setting deepspeed-version",
    ),
    Surface.PAGE: ('"GPUs"', '"GPUs": 8', '"Base weights": 4bit', '"DeepSpeed"'),
}


@pytest.mark.parametrize("surface", Surface)
def test_fact_is_named_as_it_is_stated(surface: Surface) -> None:
    with read_on(surface):
        found = named("gpus"), named("gpus", 8), named("base_weights", "4bit"), named("version")
    assert found == SAMPLES[surface]


def test_surface_ends_with_its_context() -> None:
    with read_on(Surface.COMMAND_LINE):
        assert subject("seq_len") == "--seq-len"
    assert subject("seq_len") == "seq_len"


def test_labels_are_those_of_the_page() -> None:
    page = Path(__file__).parents[2] / "website" / "check" / "index.html"
    text = page.read_text("utf-8")
    fields = re.findall(r'<label[^>]*>([^<]*)<(?:input|select) id="(\w+)"', text)
    fields += [
        (label, name) for name, label in re.findall(r'<input id="(\w+)"[^>]*> ([^<]+)<', text)
    ]
    shown = {name: label.strip() for label, name in fields if label.strip()}
    shown = {name: label for name, label in shown.items() if name not in ("text", "name")}
    assert len(shown) > 20
    for name, label in shown.items():
        assert label.lower().endswith(label_of(name).lower()), name


@pytest.mark.parametrize("surface", Surface)
def test_one_finding_on_each_surface(surface: Surface) -> None:
    config = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    with read_on(surface):
        found = dsconfig.resolve(config).diagnostics
        wanted = named("gpus")
    assert any(wanted in (each.help or "") for each in found)
