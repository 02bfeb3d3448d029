"""``dsconfig run`` on several nodes: launchers, consistency checks, restarts and failures."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dsconfig.commands import node_options
from dsconfig.project.errors import UsageError
from ports import reserved_port
from suite.limits import scaled
from waiting import until

ROOT = Path(__file__).parents[2]
SECONDS = 200.0
SLURM = {
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-09,12],x1",
    "SLURM_LOCALID": "0",
}
SKYPILOT = {
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
}
MASTER = {"MASTER_ADDR": "a", "MASTER_PORT": "7"}
LEFT_OVER = {"WORLD_SIZE": "2", "RANK": "1"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"PET_NNODES": "4", "PET_NODE_RANK": "2", "PET_RDZV_ENDPOINT": "a:1"},
            (4, 2, "a:1"),
        ),
        (
            {"PET_NNODES": "1:4", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "a"},
            (4, 0, "a:29400"),
        ),
        (SLURM, (3, 1, "gpu07:29400")),
        (SKYPILOT, (2, 1, "10.0.0.1:29400")),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", **MASTER}, (2, 1, "a:7")),
        ({"PMI_SIZE": "2", "PMI_RANK": "0", "MASTER_ADDR": "a"}, (2, 0, "a:29400")),
        ({"KUBERNETES_SERVICE_HOST": "x", **LEFT_OVER, **MASTER}, (2, 1, "a:7")),
        ({**LEFT_OVER, **MASTER}, None),
        ({"SLURM_NNODES": "2", "SLURM_NODEID": "0"}, None),  # a batch script, not a step of srun
        ({"PET_NNODES": "1"}, None),
        ({}, None),
    ],
)
def test_launcher_variables_are_read(
    environment: dict[str, str], expected: tuple[int, int, str] | None
) -> None:
    assert node_options.node_address(environment) == expected


def test_flags_override_environment() -> None:
    assert node_options.node_address(SLURM, 4, 3, "b:5") == (4, 3, "b:5")
    assert node_options.node_address(SLURM, 1) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", "a:29400"),
        ("a:5", "a:5"),
        ("[::1]:5", "::1:5"),
        ("[fe80::1]", "fe80::1:29400"),
        ("fe80::1", "fe80::1:29400"),
        ("::1:5", "::1:5"),  # as torchrun reads it
    ],
)
def test_endpoint_is_normalized(given: str, expected: str) -> None:
    assert node_options.with_port(given) == expected


@pytest.mark.parametrize(
    ("environment", "flags", "words"),
    [
        ({}, (2,), "--node-rank"),
        ({}, (2, 0), "--rdzv-endpoint"),
        ({}, (2, 2, "a"), "0 to 1"),
        ({}, (2, 1, "a:b"), "HOST:PORT"),
        ({}, (2, 1, "a:99999"), "HOST:PORT"),
        ({**SLURM, "SLURM_LOCALID": "1"}, (), "once per node"),
    ],
)
def test_missing_flags_are_named(
    environment: dict[str, str], flags: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        node_options.node_address(environment, *flags)


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ("a", "a"),
        ("a1,a2", "a1"),
        ("n[001-4]", "n001"),
        ("r[1,3]-ib,x", "r1-ib"),
        ("r[0-1]n[03,5]a,x", "r0n03a"),
        ("", None),
    ],
)
def test_first_host_of_slurm_list(listed: str, first: str | None) -> None:
    assert node_options.first_host(listed) == first


# --- two of them on this machine

TRAINS = """
import os, sys, time, pathlib, torch, dsengine
from torch import nn
folder = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
engine, *_ = dsengine.initialize(model=nn.Linear(4, 4))
if "resume" in sys.argv and (folder / "out").exists():
    engine.load_checkpoint(str(folder / "out"))
torch.manual_seed(1)
batches = torch.randn(8, 3, 4)
while engine.global_steps < 6 or "endless" in sys.argv:
    loss = engine(batches[engine.global_steps % 8][engine.global_rank :][:1]).pow(2).mean()
    engine.backward(loss)
    engine.step()
    if "resume" in sys.argv:
        engine.save_checkpoint(str(folder / "out"))
    if "dies" in sys.argv and engine.global_steps == 3 and engine.global_rank == 1:
        mark = folder / "died"
        if not mark.exists():
            mark.write_text("")
            os._exit(9)
    if "waits" in sys.argv or "endless" in sys.argv:
        (folder / f"up{engine.global_rank}").write_text("")
        time.sleep(600 if "waits" in sys.argv else 0.1)
parameters = [p.detach().clone() for p in engine.module.parameters()]
if engine.global_rank == 0:
    print("weights", f"{float(sum(p.double().sum() for p in parameters)):.9f}", flush=True)
"""
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
    "zero_optimization": {"stage": 1},
}


LOCAL = "127.0.0.1"


class Hosts:
    """Two hosts on this machine: connected network namespaces."""

    def __init__(self) -> None:
        self._id = os.getpid() % 100_000
        for node in (0, 1):
            self._ip("netns", "add", self.name(node))
        first, second = self.name(0), self.name(1)
        self._ip(
            "link", "add", first, "netns", first, "type", "veth", "peer", second, "netns", second
        )
        for node in (0, 1):
            self.configure(node, "link", "set", "lo", "up")
            self.configure(
                node, "address", "add", f"{self.address(node)}/24", "dev", self.name(node)
            )
            self.configure(node, "link", "set", self.name(node), "up")

    def name(self, node: int) -> str:
        return f"ds{self._id}n{node}"

    def address(self, node: int) -> str:
        return f"10.77.0.{node + 1}"

    def configure(self, node: int, *words: str) -> None:
        """Run ``ip`` in the namespace of a host."""
        self._ip("-n", self.name(node), *words)

    def close(self) -> None:
        for node in (0, 1):
            self._ip("netns", "delete", self.name(node))

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces require root and iproute2")
    try:
        made = Hosts()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr}")
    yield made
    made.close()


class Bed:
    """Nodes of one job, each with its own directory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, reserved_port()
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self,
        rank: int,
        *words: str,
        config: object = CONFIG,
        script: str = TRAINS,
        flags: str = "",
        nodes: str = "2",
        hosts: "Hosts | None" = None,
    ) -> "subprocess.Popen[str]":
        home = self.folder / f"node{rank}"
        home.mkdir(exist_ok=True)
        (home / "ds.json").write_text(json.dumps(config))
        (home / "train.py").write_text(script)
        command = [sys.executable, "-m", "dsconfig", "run", str(home / "ds.json")]
        command += ["--nnodes", nodes, "--node-rank", str(rank), "--device", "cpu"]
        first, own = (hosts.address(0), hosts.address(rank)) if hosts else (LOCAL, LOCAL)
        command += ["--rdzv-endpoint", f"{first}:{self.port}", "--local-addr", own]
        command += [*flags.split(), "--", str(home / "train.py"), str(self.folder), *words]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "engine")])
        environment = {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
        if hosts:
            command = ["ip", "netns", "exec", hosts.name(rank), *command]
            environment["GLOO_SOCKET_IFNAME"] = hosts.name(rank)
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def until(self, *names: str) -> None:
        until(f"{names}", lambda: all((self.folder / name).exists() for name in names), SECONDS)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def ended(*processes: "subprocess.Popen[str]") -> list[tuple[int, str]]:
    """Return exit code and output, on one line, of each process."""
    outputs = [process.communicate(timeout=scaled(SECONDS)) for process in processes]
    return [
        (process.returncode, " ".join(f"{out} {error}".split()))
        for process, (out, error) in zip(processes, outputs, strict=True)
    ]


@pytest.mark.long
@pytest.mark.engine
def test_nodes_use_the_plan_of_node_0(bed: Bed) -> None:
    (zero, output), (one, other) = ended(bed.start(0), bed.start(1))
    assert (zero, one) == (0, 0), output + other
    assert "2 ranks" in output and "node 1 of 2, using the plan of node 0" in other
    assert len([each for each in (output, other) if "weights" in each]) == 1


@pytest.mark.engine
def test_nodes_with_different_files_do_not_start(bed: Bed) -> None:
    first = bed.start(0)
    second = bed.start(1, config=CONFIG | {"gradient_clipping": 1.0}, script=TRAINS + "#")
    for code, output in ended(first, second):
        assert code == 2, output
        assert "the config ds.json differs" in output and "the script train.py differs" in output
        assert "on node 1" in output and "weights" not in output


@pytest.mark.long
@pytest.mark.engine
def test_missing_node_is_named(bed: Bed) -> None:
    [(code, output)] = ended(bed.start(0, flags="--join-timeout 3"))
    assert code == 2 and "node 1 of 2 did not join within 3 s" in output, output


def trained_by_torch(model: nn.Module, batches: Iterable[torch.Tensor]) -> Iterator[float]:
    """The loss of each step of the same training without an engine, clipped as by default."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for batch in batches:
        loss = model(batch).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())


@pytest.mark.long
@pytest.mark.engine
def test_failed_rank_restarts_from_checkpoint(bed: Bed) -> None:
    both = [bed.start(rank, "resume", "dies", flags="--max-restarts 2") for rank in (0, 1)]
    ends = ended(*both)
    assert [code for code, _ in ends] == [0, 0], ends
    assert (bed.folder / "died").exists()
    [output] = [output for _, output in ends if "weights" in output]
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    torch.manual_seed(1)
    assert len(list(trained_by_torch(model, torch.randn(8, 3, 4)[:6, :2]))) == 6
    expected = float(sum(each.detach().double().sum() for each in model.parameters()))
    assert float(output.partition("weights ")[2].split()[0]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.long
@pytest.mark.engine
def test_signal_stops_all_ranks_of_a_node(bed: Bed) -> None:
    both = [bed.start(rank, "waits") for rank in (0, 1)]
    bed.until("up0", "up1")
    for process in both:
        process.send_signal(signal.SIGTERM)
    for code, output in ended(*both):
        assert code == 128 + signal.SIGTERM and "stopped by SIGTERM" in output, output


TRAINS_ON_ANY = """
import os, sys, time, pathlib, torch, dsengine
import torch.distributed as dist
from torch import nn
folder = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
engine, *_ = dsengine.initialize(model=nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
if (folder / "out").exists():
    engine.load_checkpoint(str(folder / "out"))
torch.manual_seed(1)
samples = torch.randn(9, 12, 4)
ranks, micro = engine.world_size, engine.train_micro_batch_size_per_gpu()
while engine.global_steps < 9:
    step, loss_sum = engine.global_steps, torch.zeros(())
    for each in range(engine.gradient_accumulation_steps()):
        at = (each * ranks + engine.global_rank) * micro
        part = slice(at, at + micro)
        loss = engine(samples[step, part]).pow(2).mean()
        loss_sum += engine.backward(loss).detach()
        engine.step()
    assert engine.global_steps == step + 1
    dist.all_reduce(loss_sum)
    if engine.global_rank == 0:
        with open(folder / "curve", "a") as curve:
            print(step, ranks, f"{float(loss_sum / ranks):.9f}", file=curve)
    engine.save_checkpoint(str(folder / "out"))
    if "changes" in sys.argv and (ranks, engine.global_steps) in ((4, 3), (2, 6)):
        (folder / f"done{engine.global_steps}").write_text("")
        if ranks == 2 or "node1" in __file__:
            time.sleep(600)  # until this node is lost, or another one comes
"""
ELASTIC = CONFIG | {"train_micro_batch_size_per_gpu": 3}


def curve(folder: Path) -> dict[int, tuple[int, float]]:
    """By step: how many ranks took it, and the loss; what was taken again counts the last time."""
    lines = [line.split() for line in (folder / "curve").read_text().splitlines()]
    return {int(step): (int(ranks), float(loss)) for step, ranks, loss in lines}


@pytest.mark.engine
@pytest.mark.long
def test_elastic_run_survives_lost_and_new_nodes(bed: Bed) -> None:
    """World 4 -> 2 -> 3, with the losses of a training that nothing has happened to."""
    common = {"config": ELASTIC, "script": TRAINS_ON_ANY, "nodes": "1:2"}
    flags = "--nproc-per-node 2 --max-restarts 3"
    stays, lost = (bed.start(rank, "changes", flags=flags, **common) for rank in (0, 1))
    bed.until("done3")
    lost.kill()
    bed.until("done6")
    comes = bed.start(1, "changes", flags="--nproc-per-node 1 --max-restarts 3", **common)
    (code, output), (other, log) = ended(stays, comes)
    assert (code, other) == (0, 0), output + log
    found = curve(bed.folder)
    assert [ranks for ranks, _ in found.values()] == [4] * 3 + [2] * 3 + [3] * 3
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    torch.manual_seed(1)
    losses = list(trained_by_torch(model, torch.randn(9, 12, 4)))
    assert [loss for _, loss in found.values()] == pytest.approx(losses, abs=1e-6)
    assert "global batch 12 = 3 x 2 accumulation x 2 ranks" in output, output


@pytest.mark.engine
@pytest.mark.long
def test_indivisible_batch_stops_elastic_run(bed: Bed) -> None:
    common: dict[str, Any] = {
        "script": TRAINS,
        "flags": "--max-restarts 5 --nproc-per-node 1",
        "nodes": "1:3",
    }
    host, other, lost = (bed.start(rank, "endless", **common) for rank in (0, 1, 2))
    bed.until("up0", "up1", "up2")
    lost.kill()
    (code, output), (other_code, _) = ended(host, other)
    assert code == 2 and other_code != 0, output
    assert (
        "the remaining ranks cannot continue: 2 ranks cannot share a train_batch_size of 3 evenly"
        in output
    ), output


@pytest.mark.engine
@pytest.mark.long
def test_loss_of_node_0_ends_the_job(bed: Bed) -> None:
    common = {"config": ELASTIC, "script": TRAINS, "flags": "--max-restarts 3", "nodes": "1:2"}
    host, other = (bed.start(rank, "waits", **common) for rank in (0, 1))
    bed.until("up0", "up1")
    host.kill()
    [(code, output)] = ended(other)
    assert code != 0 and "the job ends because node 0" in output and "is lost" in output, output


@pytest.mark.parametrize(
    ("text", "expected"), [("3", (3, 3)), ("1:4", (1, 4)), (None, (None, None))]
)
def test_node_range_is_parsed(text: str | None, expected: tuple[int | None, int | None]) -> None:
    assert node_options.node_range(text) == expected


def test_torchrun_variable_may_be_a_range() -> None:
    assert node_options.torchrun_range({"PET_NNODES": "2:4"}) == "2:4"
    assert node_options.torchrun_range({"PET_NNODES": "4"}) is None
    assert node_options.torchrun_range({"SLURM_STEP_NUM_NODES": "4"}) is None


@pytest.mark.parametrize("text", ["", "0", "a", "2:1", "1:", "1:2:3"])
def test_invalid_node_range_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="--nnodes"):
        node_options.node_range(text)


@pytest.mark.engine
@pytest.mark.long
def test_training_over_a_network(bed: Bed, hosts: Hosts) -> None:
    (code, output), (other, log) = ended(*(bed.start(rank, hosts=hosts) for rank in (0, 1)))
    assert (code, other) == (0, 0), output + log
    assert "weights" in output or "weights" in log


@pytest.mark.engine
@pytest.mark.long
def test_unreachable_host_is_named(bed: Bed, hosts: Hosts) -> None:
    """Nothing closes its connections: that it is gone follows from its silence."""
    both = [bed.start(rank, "endless", hosts=hosts) for rank in (0, 1)]
    bed.until("up0", "up1")
    hosts.configure(1, "link", "set", hosts.name(1), "down")
    for code, output in ended(*both):
        assert code != 0 and "disappeared without an error" in output, output


@pytest.mark.long
@pytest.mark.engine
def test_node_with_other_rank_count_does_not_start(bed: Bed) -> None:
    for code, output in ended(
        bed.start(0, flags="--nproc-per-node 1"), bed.start(1, flags="--nproc-per-node 2")
    ):
        assert (
            code == 2
            and "node 1 was started with --nproc-per-node 2, but the plan has 1 ranks" in output
        ), output
