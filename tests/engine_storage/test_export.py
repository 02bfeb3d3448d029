"""Export of full weights as safetensors, and loading them into shards."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from training.ranks import SharedRanks

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def exported(
    ranks_of: SharedRanks, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("export") / "files"
    return folder, ranks_of(2).run("engine_storage.jobs.export:exported", directory=str(folder))


def test_all_shardings_export_and_load_the_same_weights(
    exported: tuple[Path, list[Any]],
) -> None:
    _, results = exported
    assert results[0]["equal"] == [True] * 6
    assert results[1]["equal"] == [True] * 4


def test_large_export_is_split_with_an_index(
    exported: tuple[Path, list[Any]],
) -> None:
    directory = exported[0] / "stage3"
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 1
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    tensors = {name: t for file in files for name, t in load_file(directory / file).items()}
    assert set(tensors) == set(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    assert sorted(path.name for path in directory.iterdir() if path.suffix != ".json") == files


def test_single_file_has_no_index_and_the_requested_dtype(
    exported: tuple[Path, list[Any]],
) -> None:
    directory = exported[0] / "bf16"
    assert [path.name for path in directory.iterdir()] == ["model.safetensors"]
    tensors = load_file(directory / "model.safetensors")
    assert tensors["embedding.weight"].dtype == torch.bfloat16
    assert tensors["calls"].dtype == torch.int64
    assert "head.weight" not in tensors  # tied: stored once


def test_other_file_names_select_torch_format(exported: tuple[Path, list[Any]]) -> None:
    weights = torch.load(exported[0] / "bin" / "pytorch_model.bin", weights_only=True)
    assert weights["embedding.weight"].shape == (31, 12)


def test_weights_of_another_model_are_refused_on_every_rank(
    exported: tuple[Path, list[Any]],
) -> None:
    for result in exported[1]:
        assert "missing in the checkpoint: weight, bias" in result["wrong"]
        assert "not in the model: " in result["wrong"]
        assert "embedding.weight" in result["wrong"]


def test_tied_tensor_is_stored_once_in_torch_format(tmp_path: Path) -> None:
    from dsengine.checkpoints.export.full_weights import write_weights

    weight = torch.ones(64, 64)
    for filename in ("pytorch_model.bin", "model.safetensors"):
        write_weights({"a": weight, "b": weight}, tmp_path, filename, torch.bfloat16)
    read = torch.load(tmp_path / "pytorch_model.bin")
    assert read["a"] is read["b"] and read["a"].dtype is torch.bfloat16
    assert (tmp_path / "model.safetensors").stat().st_size > 2 * weight.numel() * 2
