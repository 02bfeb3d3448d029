"""Rules DSC851 to DSC863 compared with DeepSpeed: which a CPU shows, and why not the others.

All are fixed in the newest release, so the installed one shows the fix. The failure is shown by the
last affected release if the folder DEEPSPEED_RELEASES has its source as ``deepspeed-0.19.5``, which
``pip download --no-binary :all: deepspeed==0.19.5`` fetches.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsconfig.checks.fault import RANGES
from dsconfig.checks.registry import rules
from dsconfig.schema import NEWEST

pytestmark = [pytest.mark.live, pytest.mark.long]

EMBEDDING_FLAG = """
import torch, deepspeed
model = torch.nn.ModuleDict({"embed_tokens": torch.nn.Embedding(8, 4), "p": torch.nn.Linear(4, 4)})
deepspeed.set_optimizer_flags(type("Config", (), {"optimizer_name": "muon"})(), model)
flags = {name: weight.use_muon for name, weight in model.named_parameters()}
assert flags["p.weight"] and not flags["p.bias"]
print(flags["embed_tokens.weight"])
"""
ELASTIC_BATCH = """
import deepspeed
try:
    from deepspeed.elasticity import compute_elastic_config
except ModuleNotFoundError:
    print("removed")
else:
    block = {"enabled": True, "max_train_batch_size": 100, "micro_batch_sizes": [8, 10, 12],
        "min_gpus": 1, "max_gpus": 100, "version": 0.1}
    print(compute_elastic_config({"elasticity": block}, "0.10.0")[0])
"""
SHOWN = {
    "DSC852": (EMBEDDING_FLAG, "True", "False"),
    "DSC862": (ELASTIC_BATCH, "120", "removed"),
}
"""Script, what the last affected release prints, and what the newest does."""
NOT_SHOWN = {
    "DSC851": "needs 2 ranks; Muon compiles its iteration, for minutes",
    "DSC853": "each release compiles a communication kernel for zero.Init, for minutes",
    "DSC854": "needs 2 ranks, and depends on uninitialized memory",
    "DSC855": "needs several ranks in groups of secondary shards",
    "DSC856": "needs more ranks than a weight has elements",
    "DSC857": "quantized weights have no CPU kernel",
    "DSC858": "SuperOffload requires a GPU",
    "DSC859": "needs an engine of 0.19.2, which compiles a kernel, and PEFT",
    "DSC860": "FusedAdam has no CPU kernel",
    "DSC861": "needs an engine of 0.18.1, which compiles a kernel for minutes",
    "DSC863": "needs 2 pipeline stages",
}


def test_every_rule_is_shown_or_has_a_reason() -> None:
    codes = {code for code in rules() if "DSC851" <= code <= "DSC863"}
    assert SHOWN.keys() | NOT_SHOWN.keys() == codes
    assert not SHOWN.keys() & NOT_SHOWN.keys()
    assert all(RANGES[code][1] < NEWEST for code in codes)


def _printed(script: str, folder: Path, tmp_path: Path) -> str:
    """Return what a script prints with the DeepSpeed in a folder."""
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "PYTHONPATH": str(folder),
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("code", SHOWN)
def test_installed_release_is_correct(code: str, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    script, _, correct = SHOWN[code]
    assert _printed(script, tmp_path, tmp_path) == correct


@pytest.mark.deep
@pytest.mark.parametrize("code", SHOWN)
def test_last_affected_release_fails(code: str, tmp_path: Path) -> None:
    releases = os.environ.get("DEEPSPEED_RELEASES")
    folder = Path(releases or "") / f"deepspeed-{RANGES[code][1]}"
    if releases is None or not folder.is_dir():
        pytest.skip("DEEPSPEED_RELEASES has no source of the release")
    script, affected, _ = SHOWN[code]
    assert _printed(script, folder, tmp_path) == affected
