"""Loading checkpoints recorded from DeepSpeed 0.19.8 on two ranks, without running code."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dsengine.checkpoints import CheckpointError, CheckpointMismatchError, TrainingState
from dsengine.checkpoints.deepspeed_layout.files import is_deepspeed_directory
from dsengine.checkpoints.deepspeed_layout.load import load_deepspeed_checkpoint
from dsengine.checkpoints.deepspeed_layout.read import read_checkpoint
from dsengine.checkpoints.group import CheckpointGroup
from training.ranks import SharedRanks

RECORDINGS = Path(__file__).parents[1] / "oracle" / "deepspeed_checkpoints"
EQUAL_RECORDINGS = ["z1_fp32", "z2_round_robin", "z3_fp32"]


@pytest.mark.parametrize("name", EQUAL_RECORDINGS)
def test_all_stages_read_the_same_weights_and_moments(name: str) -> None:
    expected, got = read_checkpoint(RECORDINGS / "z2_fp32"), read_checkpoint(RECORDINGS / name)
    assert got.stage == int(name[1])
    assert got.world_size == 2
    assert list(got.weights) == list(expected.weights)
    for parameter, weight in expected.weights.items():
        torch.testing.assert_close(got.weights[parameter], weight, rtol=1e-6, atol=1e-7)
    for parameter, entries in expected.optimizer_states.items():
        for entry, value in entries.items():
            other = got.optimizer_states[parameter][entry]
            torch.testing.assert_close(other, value, rtol=1e-6, atol=1e-7)


def test_16_bit_checkpoints_read_fp32_masters() -> None:
    weights = read_checkpoint(RECORDINGS / "z3_bf16").weights
    assert weights["emb.weight"].dtype == torch.float32
    assert not torch.equal(weights["emb.weight"], weights["emb.weight"].bfloat16().float())


def test_tied_weights_buffers_frozen_parameters_and_client_state_are_read() -> None:
    saved = read_checkpoint(RECORDINGS / "z3_fp32")
    assert torch.equal(saved.weights["head.weight"], saved.weights["emb.weight"])
    assert torch.equal(saved.weights["buf"], torch.arange(3.0))
    assert torch.allclose(saved.weights["frozen"], torch.linspace(0, 1, 6))
    assert saved.client_state == {"epoch": 4}
    assert saved.counters == {"global_steps": 3, "global_samples": 12, "skipped_steps": 0}


def test_unloadable_states_are_refused_before_weights_change() -> None:
    folder = RECORDINGS / "z2_fp32"
    rows, width = read_checkpoint(folder).weights["emb.weight"].shape
    embedding = nn.Embedding(rows, width)
    model = nn.ModuleDict({"emb": embedding})
    before = embedding.weight.detach().clone()

    def no_target(name: str, entry: str, shape: torch.Size) -> None:
        raise ValueError(f"no target for {entry} of {name}")

    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainingState(module=model, optimizer=optimizer, load_target=no_target)
    with pytest.raises(CheckpointError, match=r"no target for exp_avg\w* of emb.weight"):
        group = CheckpointGroup(alone=True)
        load_deepspeed_checkpoint(state, folder, group=group, strict=False)
    assert torch.equal(embedding.weight, before)


def test_states_of_another_optimizer_are_refused() -> None:
    model = nn.Linear(1, 1)
    state = TrainingState(module=model, optimizer=torch.optim.Adagrad(model.parameters()))
    with pytest.raises(CheckpointMismatchError, match=r"without \['sum'\], which Adagrad requires"):
        load_deepspeed_checkpoint(
            state, RECORDINGS / "z2_fp32", group=CheckpointGroup(alone=True), strict=False
        )


class Malicious:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return (Path.touch, (self.proof,))


def test_code_in_a_file_does_not_run(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    directory = tmp_path / "global_step1"
    directory.mkdir()
    torch.save({"module": {}, "args": Malicious(proof)}, directory / "mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointError, match="which is not allowed in a checkpoint"):
        read_checkpoint(directory)
    (directory / "mp_rank_00_model_states.pt").write_bytes(pickle.dumps(Malicious(proof)))
    with pytest.raises(CheckpointError):
        read_checkpoint(directory)
    assert not proof.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: (d / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink(), "no file of rank 0"),
        (lambda d: (d / "mp_rank_00_model_states.pt").write_bytes(b"PK\x03\x04"), "cannot be read"),
        (lambda d: (d / "mp_rank_01_model_states.pt").touch(), "model-parallel"),
    ],
)
def test_damaged_directories_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    import shutil

    directory = tmp_path / "global_step3"
    shutil.copytree(RECORDINGS / "z2_fp32" / "global_step3", directory)
    change(directory)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(directory)


def test_deepspeed_directories_are_detected(tmp_path: Path) -> None:
    assert is_deepspeed_directory(RECORDINGS / "z2_fp32" / "global_step3")
    assert not is_deepspeed_directory(tmp_path)
    with pytest.raises(CheckpointError, match="no file named latest"):
        read_checkpoint(tmp_path)


@pytest.mark.engine
def test_runs_resume_like_deepspeed(ranks_of: SharedRanks) -> None:
    job = "engine_storage.jobs.takeover:taken_over"
    (result,) = ranks_of(1).run(job, recordings=str(RECORDINGS))
    runs = {name: run for name, run in result.items() if " at " in name}
    assert len(runs) == 22
    for name, run in runs.items():
        tolerance = 2e-6 if "fp32" in name or "robin" in name else 1e-2
        assert run["losses"] == pytest.approx(run["expected"], rel=tolerance), name
        assert (run["client"]["epoch"], run["path"], run["steps"]) == (4, "global_step3", 6)
        assert run["client"]["ds_version"] and run["client"]["global_samples"] > 0
    assert "nothing does not exist" in result["missing"]
