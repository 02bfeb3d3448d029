"""Rules DSC851 to DSC863 compared with DeepSpeed on CPU: the last affected release and the newest.

All are fixed in the newest release, so the installed one shows the fix. The failure is shown by the
last affected release if the folder DEEPSPEED_RELEASES has its source as ``deepspeed-0.19.5``, which
``pip download --no-binary :all: deepspeed==0.19.5`` fetches.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from dsconfig.checks.fault import RANGES
from dsconfig.checks.registry import rules
from dsconfig.schema import NEWEST
from ports import reserved_port
from suite.limits import scaled

pytestmark = [pytest.mark.live, pytest.mark.long]

JOBS = Path(__file__).with_name("known_fault_jobs.py")
SECONDS = 200
"""Timeout of a job: importing DeepSpeed takes minutes on a busy machine."""


class Shown(NamedTuple):
    """What the last affected release and the newest print; None: the newest cannot run it."""

    affected: str
    correct: str | None
    ranks: int = 1


SHOWN = {
    "DSC851": Shown("differs", "equal", 2),
    "DSC852": Shown("Muon", "Adam"),
    "DSC853": Shown("Adam", "Muon"),
    "DSC854": Shown("NaN", "finite", 2),
    "DSC855": Shown("old", "loaded", 2),
    "DSC856": Shown("IndexError built", "built", 4),
    # Since the release that fixed it, SuperOffload refuses to run without CUDA.
    "DSC858": Shown("1.000", None),
    "DSC859": Shown("mixed dtypes", "trained", 2),
    "DSC860": Shown("never", "stepped"),
    "DSC861": Shown("RuntimeError", "stepped", 2),
    "DSC862": Shown("120", "removed"),
    "DSC863": Shown("0.25 1", "1", 2),
}
NOT_SHOWN = {
    "DSC857": Shown("NotImplementedBuilder", "NotImplementedBuilder"),
}
"""The fault is in a CUDA kernel, the quantizer; what DeepSpeed has in its place on CPU."""
CASES = SHOWN | NOT_SHOWN


def test_every_rule_is_shown_or_has_a_reason() -> None:
    codes = {code for code in rules() if "DSC851" <= code <= "DSC863"}
    assert SHOWN.keys() | NOT_SHOWN.keys() == codes
    assert not SHOWN.keys() & NOT_SHOWN.keys()
    assert all(RANGES[code][1] < NEWEST for code in codes)


def _printed(code: str, folder: Path, tmp_path: Path) -> str:
    """Return the last line of rank 0 with the DeepSpeed in a folder."""
    ranks = CASES[code].ranks
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "PYTHONPATH": str(folder),
        "TRITON_CACHE_DIR": str(tmp_path),
        # Muon's iteration takes minutes to compile.
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(reserved_port()),
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(JOBS), code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=scaled(SECONDS)) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return outputs[0][0].strip().splitlines()[-1]


@pytest.mark.parametrize("code", [code for code, shown in CASES.items() if shown.correct])
def test_installed_release_is_correct(code: str, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    assert _printed(code, tmp_path, tmp_path) == CASES[code].correct


@pytest.mark.deep
@pytest.mark.parametrize("code", SHOWN)
def test_last_affected_release_fails(code: str, tmp_path: Path) -> None:
    releases = os.environ.get("DEEPSPEED_RELEASES")
    assert code in rules()  # fills RANGES
    folder = Path(releases or "") / f"deepspeed-{RANGES[code][1]}"
    if releases is None or not folder.is_dir():
        pytest.skip("DEEPSPEED_RELEASES has no source of the release")
    assert _printed(code, folder, tmp_path) == SHOWN[code].affected
