"""Quantized gathers and reductions (ZeRO++)."""

from typing import Any

import pytest
import torch

import dsconfig
import dsengine
from dsconfig import tiles
from dsconfig.facts import hf_config
from dsengine.communication.quantized import dequantize, quantize
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOBS = "training.zeropp_jobs"
KEYS = {
    "zero_quantized_weights": True,
    "zero_quantized_gradients": True,
    "zero_quantized_nontrainable_weights": True,
}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("elements", [1, 255, 256, 1000])
def test_an_element_changes_by_at_most_half_a_scale(bits: int, elements: int) -> None:
    values = torch.randn(elements, generator=torch.Generator().manual_seed(1)) * 5
    message = quantize(values, bits)
    assert message.numel() == tiles.quantized_bytes(elements, bits)
    found = dequantize(message, bits)[:elements]
    limit = 2 ** (bits - 1) - 1
    for start in range(0, elements, tiles.QUANTIZED_BLOCK):
        block = slice(start, start + tiles.QUANTIZED_BLOCK)
        scale = values[block].abs().max() / limit
        assert (found[block] - values[block]).abs().max() <= 0.5001 * scale
    largest = values.abs().argmax()
    assert found[largest] == pytest.approx(float(values[largest]), rel=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_overflow_is_not_hidden(bits: int, bad: float) -> None:
    values = torch.ones(600)
    values[300] = bad
    found = dequantize(quantize(values, bits), bits)
    assert not found[256:512].isfinite().any()
    assert torch.equal(found[:256], values[:256])
    assert not dequantize(quantize(torch.zeros(9), bits), bits).any()


@pytest.mark.long
@pytest.mark.parametrize("elements", [77, 4096])
def test_a_mean_of_gradients_is_within_its_bound(ranks: Ranks, elements: int) -> None:
    for found in ranks.run(f"{JOBS}:reduction", elements=elements, magnitude=0.01):
        assert 0 < found["error"] <= found["bound"]


@pytest.mark.long
def test_gathered_weights_are_rounded_and_masters_are_not(ranks: Ranks) -> None:
    for found in ranks.run(f"{JOBS}:gathered", config=config(3, zero=KEYS)):
        assert found["errors"]
        assert max(found["errors"].values()) <= 0.5001
        assert any(found["errors"].values())
        assert found["exact"]


@pytest.mark.long
def test_only_frozen_weights_are_rounded(ranks: Ranks) -> None:
    chosen = config(3, zero={"zero_quantized_nontrainable_weights": True})
    for found in ranks.run(f"{JOBS}:gathered", config=chosen, freeze="up.weight"):
        assert {name for name, error in found["errors"].items() if error} == {"blocks.0.up.weight"}
        assert found["exact"]


@pytest.mark.long
@pytest.mark.parametrize(
    "keys",
    [
        KEYS,
        {"zero_quantized_gradients": True},
        {
            "zero_quantized_weights": True,
            "zero_hpz_partition_size": 2,
            "stage3_max_reuse_distance": 0,
        },
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_losses_are_close_to_exact_collectives(
    ranks: Ranks, keys: dict[str, Any], precision: str
) -> None:
    more: dict[str, Any] = {} if precision == "fp32" else {precision: {"enabled": True}}
    exact, found = (
        ranks.run(f"{JOBS}:losses", config=config(3, zero=zero, **more))[0] for zero in ({}, keys)
    )
    assert found != exact
    assert found == pytest.approx(exact, rel=0.02)
    assert found[-1] < 0.9 * found[0]


@pytest.mark.long
def test_below_stage_3_the_keys_change_nothing(ranks: Ranks) -> None:
    exact, found = (
        ranks.run(f"{JOBS}:losses", config=config(2, zero=zero), steps=3)[0] for zero in ({}, KEYS)
    )
    assert found == exact


def test_bytes_on_the_wire_are_those_of_the_estimate() -> None:
    """A byte per gathered weight, half a byte per reduced gradient, and scales."""
    fields = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 2, "vocab_size": 9000}
    facts = dsconfig.gather(gpus=8, model=hf_config.model(fields))
    found: dict[str, dict[str, int]] = {}
    planned: dict[str, Any] = {}
    chosen_keys: dict[str, dict[str, Any]] = {"exact": {}, "quantized": KEYS}
    for name, keys in chosen_keys.items():
        zero = {"stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0, **keys}
        chosen = config(3, zero=zero, bf16={"enabled": True})
        plan = dsconfig.plan(dsconfig.resolve(chosen, facts), facts)
        found[name] = dsengine.simulate(plan, facts.model)["traffic"]
        planned[name] = plan.traffic
    gathers, reductions = "all_gather_into_tensor", "reduce_scatter_tensor"
    per_byte = 1 + 4 / tiles.QUANTIZED_BLOCK
    ratio = found["quantized"][gathers] / found["exact"][gathers]
    assert ratio == pytest.approx(per_byte / 2, rel=0.01)
    assert found["quantized"]["all_to_all_single"] / found["exact"][reductions] == pytest.approx(
        (per_byte - 0.5) / 2, rel=0.01
    )
    for kind, expected in (("all_gather", per_byte / 2), ("reduce_scatter", (per_byte - 0.5) / 2)):
        ratio = planned["quantized"][kind] / planned["exact"][kind]
        assert ratio == pytest.approx(expected, rel=0.01)
