"""DeepSpeed's launcher API: host filters and the ranks of one host."""

import json
import os
import signal
import subprocess
import sys
from base64 import urlsafe_b64decode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from dsengine.launcher import runner
from dsengine.launcher.launch import command

from ports import reserved_port
from suite.limits import scaled

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
        ("--launcher OpenMPI", "openmpi is not supported: the ranks of one host need no launcher"),
        ("--launcher slurm", "--emit slurm"),
        ("--launcher ssh", "ssh is unknown"),
        ("--launcher pdsh --launcher_args=-x", "can't open file 'absent.py'"),
        ("-i localhost:9", "localhost has 1 slots"),
    ],
)
def test_invalid_flags_are_refused(flags: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("w0 slots=2\nw1 slots=2\n")
    script = "absent.py" if "absent" in words else __file__
    with pytest.raises(ValueError, match=words):
        runner.main([*flags.format(hosts=path).split(), script])


class Started(Exception):
    """Raised in place of starting torchrun."""


@pytest.fixture
def started_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, dict[str, str]]]:
    """Return a function that returns torchrun's command line and environment for flags."""

    def execve(path: str, words: list[str], environment: dict[str, str]) -> None:
        del path
        raise Started(" ".join(words), environment)

    def start(*flags: str) -> tuple[str, dict[str, str]]:
        with pytest.raises(Started) as raised:
            runner.main([*flags, __file__])
        return raised.value.args[0], raised.value.args[1]

    monkeypatch.setattr(os, "execve", execve)
    return start


def test_hostfile_of_one_host_starts_its_slots(
    started_with: Callable[..., tuple[str, dict[str, str]]], tmp_path: Path
) -> None:
    path = tmp_path / "hosts"
    path.write_text("w0 slots=4\n")
    words, environment = started_with("-H", str(path), "-e", "w0:1", "--master_port", "29123")
    assert "--nnodes=1 --node-rank=0 --nproc-per-node=3" in words
    assert "--master-addr=127.0.0.1 --master-port=29123" in words
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,2,3"
    words, _ = started_with("-H", str(path), "--num_nodes", "1", "--master_addr", "10.0.0.1")
    assert "--nproc-per-node=4 --master-addr=10.0.0.1" in words


def test_flags_that_select_devices_override_visible_devices(
    started_with: Callable[..., tuple[str, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert started_with()[1]["CUDA_VISIBLE_DEVICES"] == "4,5"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert started_with("-i", "localhost:0")[1]["CUDA_VISIBLE_DEVICES"] == "0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert "CUDA_VISIBLE_DEVICES" not in started_with("--num_gpus", "2")[1]


def test_core_binding_has_no_effect(
    started_with: Callable[..., tuple[str, dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    words, _ = started_with("--bind_cores_to_rank", "--num_gpus", "2")
    assert "bind" not in words
    printed = capsys.readouterr().out
    assert "--bind_cores_to_rank has no effect: start the launcher under numactl" in printed


@pytest.mark.long
def test_program_prints_errors() -> None:
    for words in (["--num_nodes", "2", __file__], ["absent.py"]):
        launcher = [sys.executable, "-m", "dsengine.launcher.runner", *words]
        done = subprocess.run(launcher, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith("deepspeed: error: "), done.stderr


SCRIPT = """
import os, sys, deepspeed
print(f"{deepspeed.__name__} {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {sys.argv[1:]}")
assert os.environ["LOCAL_SIZE"] == os.environ["WORLD_SIZE"] and os.environ["CROSS_SIZE"] == "1"
sys.exit(7 * int(os.environ["RANK"]) if "fail" in sys.argv else 0)
"""


def started(tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the script as a program that is called ``deepspeed`` below ``dsengine`` would."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    flags = ["--master_port", str(reserved_port()), "--num_gpus", "2"]
    launcher = [sys.executable, "-m", "dsengine", "deepspeed", *flags]
    return subprocess.run([*launcher, *words], capture_output=True, text=True, cwd=tmp_path)


def test_launcher_passes_arguments_to_every_rank(tmp_path: Path) -> None:
    done = started(tmp_path, "train.py", "--prompt", "I am 6' tall\"")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        result = [f"--local_rank={rank}", "--prompt", "I am 6' tall\""]
        assert f"dsengine {rank} of 2: {result}" in done.stdout


@pytest.mark.long
def test_exit_code_is_that_of_the_failing_rank(tmp_path: Path) -> None:
    assert started(tmp_path, "--no_local_rank", "train.py", "fail").returncode == 7


@pytest.mark.long
def test_programs_import_dsengine(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\nexec {sys.executable} train.py $@\n")
    tool.chmod(0o755)
    done = started(tmp_path, "--no_python", "./tool")
    assert "dsengine 1 of 2: ['--local_rank=1']" in done.stdout, done.stderr
    done = started(tmp_path, "--no_python", "./absent")
    assert done.returncode == 1 and "cannot run './absent'" in done.stderr


@pytest.mark.long
def test_signal_to_launcher_terminates_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    flags = ["--master_port", str(reserved_port()), "--num_gpus", "1", "--no_local_rank"]
    launcher = [sys.executable, "-m", "dsengine.launcher.runner", *flags, str(script)]
    with subprocess.Popen(
        launcher, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        try:
            assert started.stdout is not None
            rank = int(started.stdout.readline())
            started.terminate()
            rest, _ = started.communicate(timeout=scaled(60))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    assert rest == "", "a remaining process would keep the pipe open"
    assert started.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(rank, 0)


def test_rank_command_for_script_module_and_program() -> None:
    python = [sys.executable, "-u"]
    assert command(["a.py", "--x"], "3") == [*python, "a.py", "--local_rank=3", "--x"]
    assert command(["--module", "--no_local_rank", "a"], "3") == [*python, "-m", "a"]
    assert command(["--no_python", "./a", "b"], "3") == ["./a", "--local_rank=3", "b"]
