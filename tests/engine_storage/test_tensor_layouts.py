"""Split layers are read, written, saved and loaded whole."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import command_line
from engine_storage.jobs.sequence_layouts import digest
from training import curves, tensor_jobs
from training.ranks import Ranks, SharedRanks

pytestmark = [pytest.mark.live, pytest.mark.engine]
JOBS = "engine_storage.jobs.tensor_layouts"


def test_weights_and_moments_are_bit_equal_in_another_layout(
    ranks_of: SharedRanks, tmp_path: Path
) -> None:
    """TP2 x Z3 on four ranks, SP2 x Z1, one rank, TP2 at stage 2."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    job = f"{JOBS}:continued"
    runs = [
        ranks_of(4).run(job, stage=3, tensor=2, save=first),
        ranks_of(2).run(job, stage=1, sequence=2, load=first, save=second),
        ranks_of(1).run(job, stage=0, load=second, save=third),
        ranks_of(2).run(job, stage=2, tensor=2, load=third),
    ]
    for saved, loaded in pairwise(runs):
        assert all(len(digests) == 3 for digests in saved[0]["after"].values())
        for rank in loaded:
            assert rank["before"] == saved[0]["after"]
        assert loaded[0]["after"] != loaded[0]["before"]


def test_packed_weights_are_bit_equal_in_another_layout(
    ranks_of: SharedRanks, tmp_path: Path
) -> None:
    """TP2 x Z3 on four ranks, one rank, TP2 at stage 1, TP2 x Z3 on four ranks."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    job = f"{JOBS}:continued"
    runs = [
        ranks_of(4).run(job, kind="fused", stage=3, tensor=2, save=first),
        ranks_of(1).run(job, kind="fused", stage=0, load=first, save=second),
        ranks_of(2).run(job, kind="fused", stage=1, tensor=2, load=second, save=third),
        ranks_of(4).run(job, kind="fused", stage=3, tensor=2, load=third),
    ]
    for saved, loaded in pairwise(runs):
        for rank in loaded:
            assert rank["before"] == saved[0]["after"]
        assert loaded[0]["after"] != loaded[0]["before"]


@pytest.mark.parametrize("kind", ["qwen 3", "phi 3"])
def test_sequence_and_tensor_are_bit_equal_in_another_layout(
    ranks_of: SharedRanks, tmp_path: Path, kind: str
) -> None:
    """TP2 x SP2 x Z3 on four ranks, SP2 x Z1, TP2 x SP2 at stage 2, one rank, TP2 x SP2 at 0, TP2.

    The layers of phi 3 have several matrices in one weight.
    """
    layouts: list[tuple[int, dict[str, Any]]] = [
        (4, {"stage": 3, "tensor": 2, "sequence": 2}),
        (2, {"stage": 1, "sequence": 2}),
        (4, {"stage": 2, "tensor": 2, "sequence": 2}),
        (1, {"stage": 0}),
        (4, {"stage": 0, "tensor": 2, "sequence": 2}),
        (2, {"stage": 3, "tensor": 2}),
    ]
    runs: list[list[Any]] = []
    load = ""
    for number, (world_size, layout) in enumerate(layouts):
        options: dict[str, Any] = {"kind": kind, "load": load, "save": str(tmp_path / str(number))}
        runs.append(ranks_of(world_size).run(f"{JOBS}:continued", **options, **layout))
        load = options["save"]
    for saved, loaded in pairwise(runs):
        assert all(len(digests) == 3 for digests in saved[0]["after"].values())
        for rank in loaded:
            assert rank["before"] == saved[0]["after"]
        assert loaded[0]["after"] != loaded[0]["before"]


@pytest.mark.parametrize(
    ("stage", "kind", "options"),
    [
        (0, "phi 3", {}),
        (1, "gemma 3", {"files": "asynchronous"}),
        (2, "mixtral", {"files": "deepspeed"}),
        (3, "qwen 3", {}),
        (3, "phi 3", {"files": "deepspeed"}),
    ],
)
def test_run_of_sequence_and_tensor_resumes(
    ranks_of: SharedRanks, tmp_path: Path, stage: int, kind: str, options: dict[str, Any]
) -> None:
    """Bit-equal to the uninterrupted run, which equals one process."""
    expected = tensor_jobs.one_process(kind, replicas=1, steps=4)
    job = f"{JOBS}:resumed"
    runs = ranks_of(4).run(job, stage=stage, kind=kind, folder=str(tmp_path), **options)
    assert [run["different"] for run in runs] == [[]] * 4
    curves.assert_equal([run["curve"] for run in runs], expected, clip=0.5)


@pytest.mark.parametrize(
    ("stage", "more"),
    [
        (1, {}),
        (3, {"bf16": {"enabled": True}}),
        (2, {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}),
    ],
)
def test_run_of_sequence_and_tensor_resumes_with_dropout(
    ranks_of: SharedRanks, tmp_path: Path, stage: int, more: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"stage": stage, "kind": "causal", "dropout": 0.2, "more": more}
    runs = ranks_of(4).run(f"{JOBS}:resumed", folder=str(tmp_path), **options)
    assert [run["different"] for run in runs] == [[]] * 4


@pytest.mark.parametrize("stage", [1, 3])
def test_checkpoint_of_sequence_and_tensor_is_converted(
    ranks_of: SharedRanks, tmp_path: Path, stage: int
) -> None:
    """To full weights, and to DeepSpeed's files for another number of ranks."""
    source, weights, theirs = (str(tmp_path / name) for name in ("source", "weights", "theirs"))
    job = f"{JOBS}:continued"
    options: dict[str, Any] = {"kind": "phi 3"}
    saved = ranks_of(4).run(job, stage=stage, tensor=2, sequence=2, save=source, **options)[0]
    for arguments in (
        ["verify", source],
        ["convert", source, "--to", "safetensors", "-o", weights],
        ["convert", source, "--to", "deepspeed", "-o", theirs, "--stage", "2", "--ranks", "2"],
    ):
        done = command_line.run("checkpoint", *arguments, with_torch=True)
        assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "weights" / "model.safetensors")
    assert {n: digest(tensor) for n, tensor in found.items()} == {
        n: digests[0] for n, digests in saved["after"].items()
    }
    loaded = ranks_of(2).run(job, stage=2, sequence=2, load=theirs, **options)
    assert [rank["before"] for rank in loaded] == [saved["after"]] * 2


@pytest.mark.parametrize("kind", ["qwen 3", "gemma 3", "fused", "mixtral"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_whole_weights_are_bit_equal(ranks: Ranks, tmp_path: Path, stage: int, kind: str) -> None:
    job = f"{JOBS}:whole"
    assert ranks.run(job, stage=stage, kind=kind, folder=str(tmp_path)) == [[], []]


@pytest.mark.parametrize(
    ("stage", "kind", "sequence"),
    [
        *((stage, "qwen 3", 1) for stage in (1, 3)),
        (0, "mixtral", 2),
        (1, "phi 3", 2),
        (2, "gemma 3", 2),
        (3, "phi 3", 2),
    ],
)
def test_whole_weights_of_four_ranks(
    ranks_of: SharedRanks, tmp_path: Path, stage: int, kind: str, sequence: int
) -> None:
    options: dict[str, Any] = {"stage": stage, "kind": kind, "folder": str(tmp_path)}
    assert ranks_of(4).run(f"{JOBS}:whole", sequence=sequence, **options) == [[]] * 4


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("number", "sequence"), [(2, 1), (4, 1), (4, 2)])
def test_whole_weights_are_written_and_gradients_read(
    ranks_of: SharedRanks, number: int, sequence: int, stage: int
) -> None:
    for differences in ranks_of(number).run(f"{JOBS}:written", stage=stage, sequence=sequence):
        assert max(differences) < 1e-5


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [(3, 0, "qwen 3"), (1, 3, "qwen 3"), (0, 2, "qwen 3"), (3, 1, "fused"), (1, 3, "mixtral")],
)
def test_model_is_whole_again_for_the_next_engine(
    ranks: Ranks, first: int, second: int, kind: str
) -> None:
    job = f"{JOBS}:again"
    assert ranks.run(job, first=first, second=second, kind=kind) == [True, True]


@pytest.mark.parametrize(("first", "second"), [(3, 0), (1, 3)])
def test_model_of_sequence_and_tensor_is_whole_again(
    ranks_of: SharedRanks, first: int, second: int
) -> None:
    options: dict[str, Any] = {"kind": "phi 3", "sequence": 2}
    assert ranks_of(4).run(f"{JOBS}:again", first=first, second=second, **options) == [True] * 4


@pytest.mark.parametrize("stage", [1, 3])
def test_full_weights_by_the_name_of_autotp(ranks: Ranks, stage: int) -> None:
    assert ranks.run(f"{JOBS}:replaced", stage=stage) == [[True, True]] * 2
