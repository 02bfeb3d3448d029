"""Branches of the real program that a CPU does not take: by release, card and parallel ranks."""

from typing import Any

import pytest

import dsconfig
from dsconfig.cost import hardware
from dsconfig.cost.estimate import Option, Phase
from dsconfig.cost.pipeline import blocks_of_stage
from dsconfig.facts import gather

GIB = 2**30


def priced(
    zero: dict[str, Any], *, version: str | None = None, runtime: str = "deepspeed", **given: Any
) -> Option:
    """One config on eight cards of a node."""
    keys = {key: given.pop(key) for key in list(given) if key in ("tensor_parallel_block", "more")}
    facts = gather(
        **{
            "world_size": 8,
            "nodes": 1,
            "model": "llama-2-13b",
            "device": "a100-40gb",
            "sequence_length": 2048,
            "training_args": {"gradient_checkpointing": True},
            **given,
        }
    )
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": zero,
        **keys.get("more", {}),
    }
    resolution = dsconfig.resolve(config, facts, runtime=runtime, version=version)
    assert resolution.ok, resolution.diagnostics
    return dsconfig.estimate(resolution, facts).options[0]


def held(option: Option, name: str, phase: Phase | None = None) -> int:
    return sum(
        part.bytes
        for part in option.device.components
        if part.name == name and (phase is None or phase in part.phases)
    )


OFFLOADED = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
WEIGHTS = 2 * 13_015_864_320


@pytest.mark.parametrize(
    ("version", "device", "copies"),
    [("0.18.6", "a100-80gb", 1), ("0.19.8", "a100-80gb", 2), ("0.19.8", "a100-40gb", 1)],
)
def test_a_second_copy_of_the_weights_stands_on_the_card_where_it_has_room(
    version: str, device: str, copies: int
) -> None:
    option = priced(OFFLOADED, version=version, device=device)
    created = option.device.phase_bytes[Phase.INIT]
    assert created == pytest.approx(copies * WEIGHTS, rel=0.02)
    flattened = [part for part in option.host.components if part.name == "weights being flattened"]
    assert sum(part.bytes for part in flattened) == (0 if copies == 2 else 8 * 2 * WEIGHTS)


@pytest.mark.parametrize(
    ("version", "passes"),
    [("0.14.0", False), ("0.14.1", True), ("0.16.9", True), ("0.17.0", False)],
)
def test_masters_pass_the_card_in_the_step_of_some_releases(version: str, passes: bool) -> None:
    option = priced(OFFLOADED, version=version)
    expected = 2 * WEIGHTS // 8 if passes else 0
    assert held(option, "fp32 masters passing") == pytest.approx(expected, rel=0.001)


@pytest.mark.parametrize(
    ("version", "zero_init", "wrapper", "keeps"),
    [
        ("0.19.3", False, True, True),
        ("0.19.4", False, True, False),
        ("0.19.3", True, True, False),
        ("0.19.8", True, False, True),
    ],
)
def test_gathered_weights_stay_for_backward_without_stage_3s_own_linear(
    version: str, zero_init: bool, wrapper: bool, keeps: bool
) -> None:
    option = priced(
        {"stage": 3, "memory_efficient_linear": wrapper, "stage3_max_reuse_distance": 0},
        version=version,
        training_args={"zero_init": zero_init, "gradient_checkpointing": False},
    )
    kept = held(option, "gathered weights kept for backward", Phase.BACKWARD)
    assert (kept > 0.5 * WEIGHTS) is keeps


def test_nothing_gathered_stays_where_blocks_are_recomputed() -> None:
    option = priced({"stage": 3, "memory_efficient_linear": False})
    assert not held(option, "gathered weights kept for backward")


@pytest.mark.parametrize(("version", "copies"), [("0.18.4", 2), ("0.18.5", 1 + 1 / 8)])
def test_creation_gathers_the_largest_parameter_for_its_hook(version: str, copies: float) -> None:
    """Llama-3-8B with everything on the host: 1.99 GiB were printed for a release before 0.18.5."""
    host = {"device": "cpu", "pin_memory": True}
    option = priced(
        {"stage": 3, "offload_optimizer": host, "offload_param": host, "reduce_bucket_size": 1000},
        version=version,
        model="llama-3-8b",
    )
    largest = 128_256 * 4096 * 2
    assert option.device.phase_bytes[Phase.INIT] == pytest.approx(copies * largest, rel=0.01)


def activations(option: Option) -> int:
    return held(option, "activations", Phase.FORWARD)


def test_degrees_of_the_file_are_those_of_the_flags() -> None:
    plain = priced({"stage": 1})
    for key, block in (
        ("tensor_parallel", {"more": {"tensor_parallel": {"autotp_size": 4}}}),
        ("sequence_parallel", {"more": {"sequence_parallel_size": 4}}),
    ):
        by_flag, by_file = priced({"stage": 1}, **{key: 4}), priced({"stage": 1}, **block)
        assert by_file.device.phase_bytes == by_flag.device.phase_bytes
        assert by_file.device.peak_bytes != plain.device.peak_bytes
        assert activations(by_file) > 0


@pytest.mark.parametrize("degree", ["tensor_parallel", "sequence_parallel", "pipeline_parallel"])
def test_no_degree_makes_activations_vanish(degree: str) -> None:
    option = priced({"stage": 1}, **{degree: 4})
    assert activations(option) and option.step is not None


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    alone = priced({"stage": 1}, pipeline_parallel=4)
    filled = priced({"stage": 1}, pipeline_parallel=4, more={"gradient_accumulation_steps": 16})
    others = held(filled, "activations of other micro batches", Phase.FORWARD)
    # Ten blocks each keep 2sbh; so do the stage's input and its output, beside the token ids.
    each = (10 + 2) * 2 * 2048 * 5120
    assert others == pytest.approx(3 * each, rel=0.01)
    assert not held(alone, "activations of other micro batches")
    assert filled.step is not None and filled.step.bubble_seconds > 0


def test_blocks_left_over_stand_on_the_first_stages() -> None:
    assert [len(blocks_of_stage(10, stage, 4)) for stage in range(4)] == [3, 3, 2, 2]
    assert [each for stage in range(4) for each in blocks_of_stage(10, stage, 4)] == list(range(10))
    with pytest.raises(ValueError, match=r"--pipeline-parallel 4.*give 3 at most"):
        blocks_of_stage(3, 0, 4)


def test_every_axis_of_the_mesh_has_a_communicator() -> None:
    one = gather(world_size=1, nodes=1)
    three = gather(world_size=8, nodes=1, tensor_parallel=2, pipeline_parallel=2)
    more = hardware.outside_bytes(three) - hardware.outside_bytes(one)
    assert more == 3 * hardware.COMMUNICATOR_BYTES


def test_a_ring_between_nodes_uses_the_adapters_of_all_their_ranks() -> None:
    def link(**given: Any) -> float:
        return hardware.rates(gather(device="a100-80gb", **given)).link

    assert link(world_size=16, nodes=16, node_link="25") == 25e9
    assert link(world_size=16, nodes=4, node_link="200Gbit") == 100e9
    assert link(world_size=8, nodes=1) == pytest.approx(300e9 * (0.5 * 0.9) ** 0.5)
