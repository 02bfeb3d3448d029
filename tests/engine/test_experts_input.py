"""Models and configs whose experts cannot be divided: one error on every rank, before training."""

import re
from typing import Any

import pytest

from training.ranks import Ranks, SharedRanks

JOB = "training.expert_input_jobs:refused"
TENSOR = {"tensor_parallel": {"autotp_size": 2}}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "block", "more", "words"),
    [
        ("own", {"moe_layer_pattern": "no"}, {}, "Own has no experts that the pattern matches"),
        ("own", {"moe_layer_pattern": None}, {}, "Own has no experts that a plan .*: write"),
        ("own", {"moe_layer_pattern": "(mlp"}, {}, r"moe_layer_pattern '\(mlp': missing \)"),
        ("own", {"expert_pattern": "shared"}, {}, "mixture.shared is not a module of experts"),
        ("apart", {"moe_layer_pattern": "mixture"}, {}, "mixture.experts is not a module of exp"),
        ("own", {"preset_model": "bloom"}, {}, "this preset is unknown"),
        (
            "own",
            {},
            {"optimizer": {"type": "Adafactor"}},
            "divided experts do not have; dsengine refuses",
        ),
        ("own", {"top_k": 4}, {}, "top_k is 4, but dsengine uses the router of the model"),
        ("own", {"comm_backend": "deepep"}, {}, "DeepEP"),
        ("own", {"autoep_size": 3}, {}, "autoep_size 3 does not divide 4 .*use 2"),
        ("own", {"autoep_size": 4}, {}, "does not divide the 6 experts of .*: use 2"),
        ("own", {}, TENSOR, "it does not combine it with tensor_parallel="),
        ("own", {}, {"sequence_parallel_size": 2}, "combine it with sequence_parallel="),
    ],
)
def test_what_cannot_be_divided_is_refused(
    ranks_of: SharedRanks, kind: str, block: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    messages = ranks_of(4).run(JOB, kind=kind, block=block, more=more)
    assert len(set(messages)) == 1
    assert re.search(words, messages[0], re.DOTALL), messages[0]


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"top_k": 1}, "top_k is 1, .* config has 2"),
        ({"top_k": 3, "top_k_attr": "num_hidden_layers"}, "top_k is 3, .* config has 2"),
        ({"route_norm": True}, "route_norm is True, .* config has no norm_topk_prob"),
        ({"autoep_size": 4}, "autoep_size 4 does not divide 2 .*: use 2"),
    ],
)
def test_router_of_transformers_is_kept(ranks: Ranks, block: dict[str, Any], words: str) -> None:
    messages = ranks.run(JOB, kind="Mixtral", block=block)
    assert len(set(messages)) == 1
    assert re.search(words, messages[0], re.DOTALL), messages[0]


@pytest.mark.engine
@pytest.mark.live
def test_values_of_the_model_are_accepted(ranks: Ranks) -> None:
    block = {"top_k": 2, "preset_model": "mixtral", "score_apply": "post", "use_grouped_mm": False}
    assert ranks.run(JOB, kind="Mixtral", block=block) == ["", ""]
