"""``dsconfig run --hostfile`` and ``--emit``: selected hosts and job scripts."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

import command_line
from dsconfig.commands import node_options
from dsconfig.hostfile import hosts, read
from ports import reserved_port
from suite.limits import scaled

ROOT = Path(__file__).parents[2]
HOSTS = "# two large, one small\nw0 slots=4\n\n  w1 slots=4 # beside it\nw2 slots=2\n"
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
    "zero_optimization": {"stage": 1},
}
PRINTS = """
import sys, dsengine
from torch import nn
engine, *_ = dsengine.initialize(model=nn.Linear(4, 4))
print(f"rank {engine.global_rank} of {engine.world_size}: {sys.argv[1:]}", flush=True)
"""
FILTERS = [
    (None, None),
    ("w1", None),
    ("w2@w0", None),
    ("w1:3,1@w0:0,2", None),
    ("w0:1,1@w0:0", None),
    (None, "w2"),
    (None, "w0:3,0@w1:1,2@w2"),
    (None, "w2:0,1@w0:1"),
]


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_text(HOSTS)
    return path


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (FILTERS[0], {"w0": (0, 1, 2, 3), "w1": (0, 1, 2, 3), "w2": (0, 1)}),
        (FILTERS[2], {"w0": (0, 1, 2, 3), "w2": (0, 1)}),
        (FILTERS[3], {"w0": (0, 2), "w1": (1, 3)}),
        (FILTERS[6], {"w0": (1, 2), "w1": (0, 3)}),
    ],
)
def test_filters_select_hosts_and_slots(
    hostfile: Path, filters: tuple[str | None, str | None], expected: dict[str, tuple[int, ...]]
) -> None:
    chosen = hosts(hostfile, *filters)
    assert dict(chosen.slots) == expected
    assert list(chosen.names) == list(expected)


@pytest.mark.live
@pytest.mark.parametrize(("include", "exclude"), FILTERS)
def test_filters_match_deepspeed(hostfile: Path, include: str | None, exclude: str | None) -> None:
    from deepspeed.launcher import runner

    pool = runner.fetch_hostfile(str(hostfile))
    theirs = runner.parse_inclusion_exclusion(pool, include or "", exclude or "")
    ours = hosts(hostfile, include, exclude).slots
    assert [(name, list(slots)) for name, slots in ours.items()] == list(theirs.items())


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        (("w0", "w1"), "mutually exclusive"),
        (("w9", None), "'w9' is not in the hostfile"),
        (("w0:4", None), "not '4'"),
        ((None, "w0:x"), "not 'x'"),
        (("w0:", None), "not ''"),
        ((None, "w0@w1@w2"), "the filters leave no slots"),
    ],
)
def test_unknown_hosts_and_slots_are_rejected(
    hostfile: Path, filters: tuple[str | None, str | None], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        hosts(hostfile, *filters)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("w0 slots=1\nw0 slots=2", "hosts:2: duplicate host w0"),
        ("w0", "HOST slots=N"),
        ("w0 slots=two", "HOST slots=N"),
    ],
)
def test_invalid_hostfile_line_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        read(path)


def test_unequal_slots_suggest_filter(hostfile: Path) -> None:
    with pytest.raises(ValueError, match=r"w0 has 4 slots, but others have 2.*@w0:0,1"):
        _ = hosts(hostfile).ranks
    assert hosts(hostfile, "w0:0,1@w1:2,3@w2").ranks == 2


# --- as a command


@pytest.fixture
def home(tmp_path: Path, hostfile: Path) -> Path:
    assert hostfile.exists()
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    (tmp_path / "train it.py").write_text(PRINTS)
    return tmp_path


def emitted(
    home: Path, *flags: str, script: str = "train it.py"
) -> "subprocess.CompletedProcess[str]":
    words = ["ds.json", *flags, "--", script, "--data", "a 'b'"]
    return command_line.run("run", *words, cwd=home, environment=environment())


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "engine")])
    return os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}


def test_slurm_job_requests_nodes_and_gpus_of_plan(home: Path) -> None:
    flags = "--emit slurm --nnodes 4 --gpus 32 --device h100 --model gpt2 --seq-len 128"
    job = emitted(home, *flags.split(), "--set", "bf16.enabled=true", "--max-restarts", "2")
    assert job.returncode == 0, job.stderr
    requested = {line.removeprefix("#SBATCH --") for line in job.stdout.splitlines()}
    assert {"nodes=4", "gpus-per-node=8", "ntasks-per-node=1", "no-kill"} <= requested
    assert "batch 32 = 1 micro x 1 accumulation x 32 ranks" in job.stdout
    assert "per H100" in job.stdout
    assert subprocess.run(["bash", "-n"], input=job.stdout, text=True, check=False).returncode == 0
    command = shlex.split(job.stdout.partition("srun ")[2])
    assert command[-4:] == ["--", "train it.py", "--data", "a 'b'"]
    assert tuple(command[command.index(flag) + 1] for flag in ("--set", "--max-restarts")) == (
        "bf16.enabled=true",
        "2",
    )


@pytest.mark.parametrize("flags", ["--gpus 16 --nodes 2", "--nodes 2 --nproc-per-node 8"])
def test_gpus_are_the_total_of_all_nodes(home: Path, flags: str) -> None:
    """As in ``estimate``, where the same flags mean 16 ranks."""
    job = emitted(home, "--emit", "slurm", *flags.split(), "--device", "a100-80gb")
    assert job.returncode == 0, job.stderr
    assert "#SBATCH --gpus-per-node=8\n" in job.stdout and "x 16 ranks" in job.stdout
    command = shlex.split(job.stdout.partition("srun ")[2])
    assert command[command.index("--nproc-per-node") + 1] == "8" and "--gpus" not in command


def test_total_is_divided_by_the_nodes_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "4")
    assert node_options.NodeOptions(gpus=8).requested().gpus == 2
    assert node_options.NodeOptions(nproc_per_node=8).requested().gpus == 8


def test_torchrun_variables_are_flag_defaults(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "2:4")
    monkeypatch.setenv("PET_MAX_RESTARTS", "3")
    made = emitted(home, "--emit", "slurm", "--device", "cpu")
    assert made.returncode == 0, made.stderr
    assert "#SBATCH --nodes=4\n" in made.stdout and "--max-restarts 3" in made.stdout


def test_cpu_job_requests_no_gpus(home: Path) -> None:
    made = emitted(home, "--emit", "slurm", "--nnodes", "2", "--device", "cpu")
    assert made.returncode == 0 and "gpus-per-node" not in made.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--emit ssh --nnodes 2", "--hostfile"),
        ("--emit slurm --hostfile hosts --include w0:1", "Slurm assigns"),
        ("--hostfile hosts --include w0 --gpus 2", "--gpus 2: the selected hosts have 4"),
        ("--hostfile hosts --include w0 --nproc-per-node 2", "--nproc-per-node 2: the selected"),
        ("--hostfile hosts --include w0@w1 --nnodes 3", "--nnodes 3"),
        ("--emit slurm --nnodes 3 --gpus 4", "--gpus 4 is the total of 3 nodes"),
        ("--emit slurm --nnodes 2 --gpus 4 --nproc-per-node 4", "2 per node, not"),
        ("--include w0", "--hostfile"),
        ("--hostfile hosts --include w0@w1", "--node-rank"),
        ("--nnodes 1:2 --rdzv-endpoint a:1 --node-rank 0", "--max-restarts"),
        ("--nnodes 1:" + "9" * 5000, "MIN:MAX"),
        ("--emit slurm --nnodes 2 --node-rank 0", "omit --node-rank"),
        ("--hostfile hosts --include w0:" + "9" * 5000, "not '999"),
    ],
)
def test_contradictory_flags_are_rejected(home: Path, flags: str, words: str) -> None:
    refused = emitted(home, *flags.split())
    assert refused.returncode == 2 and words in refused.stderr, refused.stderr


@pytest.mark.long
@pytest.mark.engine
def test_ssh_script_starts_each_node(home: Path) -> None:
    """Uses a fake ssh that runs locally, and two names of this machine as nodes."""
    (home / "hosts").write_text("127.0.0.1 slots=2\nlocalhost slots=2\n")
    port = reserved_port()
    flags = ["--emit", "ssh", "--hostfile", "hosts", "--device", "cpu"]
    made = emitted(home, *flags, "--rdzv-endpoint", f"127.0.0.1:{port}")
    assert made.returncode == 0, made.stderr
    stands_in = home / "ssh"
    stands_in.write_text('#!/bin/bash\nshift 4\nexec bash -c "$*"\n')
    stands_in.chmod(0o755)
    path = f"{home}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", made.stdout],
        env=environment() | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=scaled(200),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    expected = [f"""rank {rank} of 4: ['--data', "a 'b'"]""" for rank in range(4)]
    assert all(each in ended.stdout for each in expected), ended.stdout


@pytest.mark.parametrize("line", ["-oProxyCommand=x slots=2", "w0 slots=99999", "w0 slots=4xyz"])
def test_invalid_host_names_and_slots_are_rejected(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(line)
    with pytest.raises(ValueError, match="HOST slots=N"):
        read(path)


def test_script_name_is_quoted(home: Path) -> None:
    odd = home / "a\ntouch INJECTED\n#.py"
    odd.write_text(PRINTS)
    done = emitted(home, "--emit", "slurm", "--nnodes", "2", "--gpus", "2", script=odd.name)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --job-name=a_touch_INJECTED__\n" in done.stdout
    program = shlex.split(done.stdout.partition("srun ")[2])
    assert program[program.index("--") + 1] == odd.name


def test_elastic_job_notes_indivisible_node_counts(home: Path) -> None:
    (home / "hosts").write_text("me@w0 slots=1\nw1 slots=1\nw2 slots=1\n")
    elastic = ["--nnodes", "1:3", "--max-restarts", "2", "--global-batch", "3"]
    over_ssh = emitted(home, "--emit", "ssh", "--hostfile", "hosts", *elastic).stdout
    assert over_ssh.count("--nnodes 1:3") == 3
    assert "-- me@w0 " in over_ssh and "--local-addr w0 --rdzv-endpoint w0:29400" in over_ssh
    assert "# note: 2 nodes cannot divide a global batch of 3" in over_ssh
    assert "--nnodes 1:3" in emitted(home, "--emit", "slurm", "--gpus", "3", *elastic).stdout


@pytest.mark.parametrize("ended_first", [True, False])
def test_ssh_script_returns_code_of_failed_node(home: Path, ended_first: bool) -> None:
    (home / "hosts").write_text("bad slots=1\ngood slots=1\n")
    made = emitted(home, "--emit", "ssh", "--hostfile", "hosts")
    waits = "bad" if not ended_first else "good"
    other_runs = home / "other"
    os.mkfifo(other_runs)  # has a writer until the other node has exited
    stands_in = home / "ssh"
    stands_in.write_text(f"""#!/bin/bash
if [ $4 = {waits} ]; then cat {other_runs}; else exec 3>{other_runs}; fi
echo $4 ended
[ $4 = good ] || exit 7
""")
    stands_in.chmod(0o755)
    path = f"{home}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", made.stdout], env=environment() | {"PATH": path}, capture_output=True
    )
    assert done.returncode == 7
    assert sorted(done.stdout.split(b"\n")) == [b"", b"bad ended", b"good ended"]
