"""DeepSpeed's launcher API: host filters and the ranks of one host."""

import json
import os
import subprocess
import sys
from base64 import urlsafe_b64decode
from pathlib import Path

import pytest
from dsengine.launcher import runner
from dsengine.launcher.launch import command

from ports import reserved_port

pytestmark = pytest.mark.engine
HOSTS = {"w0": [0, 1, 2, 3], "w1": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ("", "", HOSTS),
        ("w1:0,3", "", {"w1": [0, 3]}),
        ("w1:1@w1:0,1", "", {"w1": [0, 1]}),
        ("", "w0:0,1@w1:3", {"w0": [2, 3], "w1": [0, 1, 2]}),
        ("", "w0:0,1,2,3@w1", {}),
    ],
)
def test_filters_select_slots(include: str, exclude: str, left: dict[str, list[int]]) -> None:
    assert runner.parse_resource_filter(HOSTS, include, exclude) == left
    assert runner.parse_inclusion_exclusion({"w0": 4, "w1": 4}, include, exclude) == left


@pytest.mark.parametrize(("include", "exclude"), [("w2", ""), ("", "w1:4"), ("w0", "w1")])
def test_invalid_filter_is_refused(include: str, exclude: str) -> None:
    with pytest.raises(ValueError, match="clude"):
        runner.parse_resource_filter(HOSTS, include, exclude)


def test_hostfile_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    assert runner.fetch_hostfile(str(path)) is None
    path.write_text("w0 slots=4\n# none\n\nw1 slots=2\n")
    assert runner.fetch_hostfile(str(path)) == {"w0": 4, "w1": 2}
    assert json.loads(urlsafe_b64decode(runner.encode_world_info({"w0": [0]}))) == {"w0": [0]}
    path.write_text("# none\n")
    with pytest.raises(ValueError, match="HOST slots=N"):
        runner.fetch_hostfile(str(path))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--num_gpus 1 -i localhost", "exclude --include and --exclude"),
        ("--num_nodes 1 -e localhost", "exclude --include and --exclude"),
        ("--num_nodes 2", "no hostfile"),
        ("-H {hosts}", "--emit ssh"),
        ("-H {hosts} --no_ssh", "--node_rank of 2 hosts is 0 to 1"),
        ("-H {hosts} -e w0@w1", "no slots are left"),
        ("--module --no_python", "cannot be combined"),
        ("--autotuning run", "dsconfig tune"),
        ("--launcher pdsh --launcher_args=-x --bind_cores_to_rank", "numactl"),
    ],
)
def test_invalid_flags_are_refused(flags: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("w0 slots=2\nw1 slots=2\n")
    with pytest.raises(ValueError, match=words):
        runner.main([*flags.format(hosts=path).split(), "train.py"])


SCRIPT = """
import os, sys, deepspeed
print(f"{deepspeed.__name__} {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {sys.argv[1:]}")
sys.exit(7 * int(os.environ["RANK"]) if "fail" in sys.argv else 0)
"""


def started(tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    flags = ["--master_port", str(reserved_port()), "--num_gpus", "2"]
    launcher = [sys.executable, "-m", "dsengine.launcher.runner", *flags]
    return subprocess.run([*launcher, *words], capture_output=True, text=True, cwd=tmp_path)


def test_launcher_passes_arguments_to_every_rank(tmp_path: Path) -> None:
    done = started(tmp_path, "train.py", "--prompt", "I am 6' tall\"")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        result = [f"--local_rank={rank}", "--prompt", "I am 6' tall\""]
        assert f"dsengine {rank} of 2: {result}" in done.stdout


def test_failing_rank_fails_the_launcher(tmp_path: Path) -> None:
    assert started(tmp_path, "--no_local_rank", "train.py", "fail").returncode != 0


def test_signal_to_launcher_terminates_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    flags = ["--master_port", str(reserved_port()), "--num_gpus", "1", "--no_local_rank"]
    launcher = [sys.executable, "-m", "dsengine.launcher.runner", *flags, str(script)]
    with subprocess.Popen(launcher, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        rank = int(started.stdout.readline())
        started.terminate()
        assert started.stdout.read() == "", "a remaining process would keep the pipe open"
    assert started.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.kill(rank, 0)


def test_rank_command_for_script_module_and_program() -> None:
    python = [sys.executable, "-u", "-m", "dsengine.as_deepspeed"]
    assert command(["a.py", "--x"], "3") == [*python, "a.py", "--local_rank=3", "--x"]
    assert command(["--module", "--no_local_rank", "a"], "3") == [*python, "-m", "a"]
    assert command(["--no_python", "./a", "b"], "3") == ["./a", "--local_rank=3", "b"]
