"""``iter_weights`` yields full weights on all ranks, with bounded memory, or raises on all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dsengine.checkpoints.export.conversion import WeightMetadata, components_of
from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks, SharedRanks

pytestmark = pytest.mark.engine
JOBS = "training.export_jobs"
BF16: dict[str, Any] = {"bf16": {"enabled": True}}
SAVED: dict[str, Any] = {"stage3_gather_16bit_weights_on_model_save": True}
HOST: dict[str, Any] = {"device": "cpu"}
SETTINGS: dict[str, dict[str, Any]] = {
    **{f"stage {stage}": config(stage, zero=SAVED) for stage in range(4)},
    **{f"stage {stage} in bf16": config(stage, zero=SAVED, **BF16) for stage in range(4)},
    "persistent": config(3, zero={**SAVED, "stage3_param_persistence_threshold": 200}, **BF16),
    "optimizer on the host": config(2, zero={"offload_optimizer": HOST}, **BF16),
    "all on the host": config(
        3, zero={**SAVED, "offload_optimizer": HOST, "offload_param": HOST}, **BF16
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_weights_are_those_of_the_saved_model(ranks: Ranks, tmp_path: Path, case: str) -> None:
    """And in the same order on both ranks, in memory that training does not use."""
    results = ranks.run(f"{JOBS}:as_saved", settings=SETTINGS[case], folder=str(tmp_path))
    for result in results:
        assert result["different"] == []
        assert result["same order"] and result["wide"]
    plain = ranks.once("training.jobs:losses", config=SETTINGS[case], steps=2)
    assert results[0]["loss"] == results[1]["loss"] and plain


def test_samples_divided_along_the_sequence_and_replicas(
    ranks_of: SharedRanks, tmp_path: Path
) -> None:
    cases = {
        "sequence": config(3, zero=SAVED, sequence_parallel_size=2),
        "replicas": config(3, zero={**SAVED, "mics_shard_size": 2}),
    }
    for name, settings in cases.items():
        arguments: dict[str, Any] = {"settings": settings, "folder": str(tmp_path / name)}
        for result in ranks_of(4).run(f"{JOBS}:as_saved", steps=0, **arguments):
            assert result["different"] == [] and result["same order"], name


@sweep(1, size=[2, 4], stage=range(4))
def test_split_layers_are_joined(ranks_of: SharedRanks, size: int, stage: int) -> None:
    job = f"{JOBS}:of_split_layers"
    assert ranks_of(size).run(job, kind="odd vocabulary", stage=stage) == [[]] * size


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("precision", [{}, BF16], ids=["fp32", "bf16"])
def test_peak_is_a_bucket_and_two_tensors(
    ranks: Ranks, stage: int, precision: dict[str, Any]
) -> None:
    for nbytes in (7000, 14000):
        settings = config(stage, **precision)
        for result in ranks.run(f"{JOBS}:peak", settings=settings, nbytes=nbytes):
            assert result["peak"] <= nbytes + 2 * result["largest"] < result["total"]


@sweep(1, axis=["tensor", "packed", "expert"], stage=range(4))
def test_peak_of_parts_is_a_bucket_and_two_tensors(ranks: Ranks, stage: int, axis: str) -> None:
    options: dict[str, Any] = {"axis": axis, "stage": stage, "nbytes": 7000}
    # A thread of gloo may hold a tensor for a moment after its collective.
    for result in ranks.run(f"{JOBS}:peak_of_divided_model", **options):
        assert result["peak"] <= 7000 + 2 * result["largest"] < result["total"]


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize(
    "way", ["break", "never started", "forward", "save", "destroy", "raise", "dtype", "again"]
)
def test_a_rank_that_leaves_raises_on_all(ranks: Ranks, stage: int, way: str) -> None:
    first, second = ranks.run(f"{JOBS}:left", settings=config(stage), way=way, seconds=60)
    if way == "raise":
        assert second.pop(0) == "ValueError: the caller has failed"
    assert first == second and len(first) == 1
    if way == "dtype":
        assert first[0].startswith("ValueError: rank 1 calls iter_weights(bucket_bytes=1, dtype=")
        assert "but rank 0 calls" in first[0]
    else:
        assert first[0].startswith("RuntimeError: rank 1 stopped iter_weights() after ")


@pytest.mark.parametrize("stage", [0, 3])
def test_ranks_may_leave_together(ranks: Ranks, stage: int) -> None:
    results = ranks.run(f"{JOBS}:left_together", settings=config(stage))
    curve = ranks.once("training.jobs:losses", config=config(stage), steps=3)[0]
    for result in results:
        assert result["equal"] and result["left"] == []
        assert result["losses"] == curve[1:]


@pytest.mark.parametrize("stage", range(4))
def test_only_states_that_are_read_must_not_be_offloaded(ranks: Ranks, stage: int) -> None:
    kinds = ["optim_states", "hp_params"]
    settings = config(stage, **BF16)
    error = ranks.run(f"{JOBS}:with_offloaded", settings=settings, kinds=kinds)[0]
    needs_masters = stage == 0  # elsewhere shards are masters
    assert error.endswith("are offloaded; call reload_states() first") is needs_masters


def test_wrong_arguments_are_named(ranks: Ranks) -> None:
    errors = ranks.run(f"{JOBS}:refused", settings=config(3))[0]
    assert [error.split()[0] for error in errors] == [
        *("bucket_bytes", "dtype", "dtype", "lora", "names", "lora='adapter':")
    ]


# Conversions


def described(convert: Any, sources: dict[str, Tensor], aliases: Any = None) -> list[Any]:
    """Return sources, output names and whether it is a renaming, by component."""
    return [
        (each.sources, [output.name for output in each.outputs], each.is_renaming)
        for each in components_of(sources, aliases or {}, convert)
    ]


def meta(*names: str) -> dict[str, Tensor]:
    return {name: torch.empty(4, 6, device="meta") for name in names}


def test_tensors_that_share_an_output_are_converted_together() -> None:
    def convert(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if name == "experts":
                found |= {f"expert.{i}": part.squeeze(0) for i, part in enumerate(tensor.chunk(4))}
            elif name == "q":
                found["qkv"] = torch.cat([tensors["q"], tensors["v"]])
            elif name != "v":
                found[name.removeprefix("old.")] = tensor
        return found

    components = described(convert, meta("q", "old.norm", "v", "experts"))
    assert components == [
        (("q", "v"), ["qkv"], False),
        (("old.norm",), ["norm"], True),
        (("experts",), [f"expert.{i}" for i in range(4)], False),
    ]


def test_writes_in_place_count_as_sources() -> None:
    def convert(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if "weight" in tensors:
            tensors["weight"].data += tensors["b"] @ tensors["a"].T @ torch.empty(4, 6).to("meta")
        return {"weight": tensors["weight"]}

    assert described(convert, meta("weight", "a", "b")) == [
        (("weight", "a", "b"), ["weight"], False)
    ]


def test_conversions_that_need_other_tensors_get_those_of_their_layer() -> None:
    def convert(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for layer in {name.rpartition(".")[0] for name in tensors}:
            text, vision = tensors[f"{layer}.text"], tensors[f"{layer}.vision"]
            found |= {f"{layer}.{i}": each * 1 for i, each in enumerate((text, vision))}
        return found

    sources = meta("layers.0.text", "layers.0.vision", "layers.1.text", "layers.1.vision")
    assert described(convert, sources) == [
        (("layers.0.text", "layers.0.vision"), ["layers.0.0", "layers.0.1"], False),
        (("layers.1.text", "layers.1.vision"), ["layers.1.0", "layers.1.1"], False),
    ]


def test_a_conversion_that_cannot_be_divided_is_refused() -> None:
    def convert(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"{len(tensors)}.{name}": tensor * 1 for name, tensor in tensors.items()}

    assert [names for names, _, _ in described(convert, meta("a", "b"))] == [("a", "b")]
    calls = iter(range(100))
    with pytest.raises(ValueError, match="pass names='module'"):
        described(lambda tensors: {str(next(calls)): tensors["a"] * 1}, meta("a"))


def test_bytes_of_metadata() -> None:
    assert WeightMetadata("scale", torch.bfloat16, ()).nbytes == 2
    assert WeightMetadata("weight", torch.float32, (3, 5)).nbytes == 60
