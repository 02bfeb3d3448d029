"""Weights that ``from_pretrained`` loads at stage 3."""

from pathlib import Path
from typing import Any

import pytest
import torch

from frameworks.families import SOME
from training.ranks import Ranks

pytestmark = [pytest.mark.live, pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
JOB = "frameworks.family_loading:after_loading"


def errors(two: Ranks, tmp_path: Path, **arguments: Any) -> str:
    found = two.run(JOB, folder=str(tmp_path), **arguments)
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("family", SOME)
def test_family_loads_equally(two: Ranks, tmp_path: Path, family: str) -> None:
    job = "frameworks.family_loading:loaded"
    for found in two.run(job, model_types=[family], folder=str(tmp_path)):
        assert found == {family: ("equal", "")}


@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "LlamaForSequenceClassification"])
def test_loaded_models_train_with_and_without_a_new_head(
    two: Ranks, tmp_path: Path, kind: str
) -> None:
    assert errors(two, tmp_path, model_type="llama", kind=kind) == ""


@pytest.mark.parametrize(
    ("model_type", "kind", "skip", "names"),
    [
        ("llama", "LlamaForCausalLM", "layers.1.mlp.up", ["model.layers.1.mlp.up_proj.weight"]),
        ("llama", "LlamaForSequenceClassification", "q_proj", ["layers.1.self_attn.q_proj.weight"]),
        ("llama", "LlamaForCausalLM", ".", ["model.embed_tokens.weight"]),
        ("mixtral", "MixtralForCausalLM", "experts", ["model.layers.0.mlp.experts.gate_up_proj"]),
    ],
)
def test_skipped_weights_are_refused(
    two: Ranks, tmp_path: Path, model_type: str, kind: str, skip: str, names: list[str]
) -> None:
    error = errors(two, tmp_path, model_type=model_type, kind=kind, skip=skip)
    assert "from_pretrained did not load them" in error
    assert all(name in error for name in names)
    assert "score" not in error  # a new head


def test_skipped_weights_can_be_accepted(two: Ranks, tmp_path: Path) -> None:
    arguments = {"model_type": "llama", "kind": "LlamaForCausalLM", "skip": "mlp"}
    assert errors(two, tmp_path, **arguments, allow="1") == ""


def test_uninitialized_weights_are_refused(two: Ranks, tmp_path: Path) -> None:
    error = errors(two, tmp_path, model_type="llama", kind="WithBias")
    assert "1 weight, bias_of_logits, is not initialized" in error


def test_gathered_parameters_may_be_in_any_order(two: Ranks) -> None:
    for found in two.run("frameworks.family_loading:written_in_order_of_rank"):
        for number, tensor in enumerate(found.values()):
            assert torch.equal(tensor, torch.full_like(tensor, number))
