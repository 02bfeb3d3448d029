"""When one rank fails, the others name it and the cause, and end; checkpoints stay valid."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from dsengine.communication.peers import Message, RankFailedError, abort, in_phase
from dsengine.communication.peers.message import MessageKind
from dsengine.communication.peers.status import STATUS
from engine_storage.scripts import run_script

pytestmark = pytest.mark.engine

KILLED = -9
CASES = {
    "killed_in_backward": (KILLED, ["rank 1", "killed", "backward() of step 2"]),
    "killed_in_save": (KILLED, ["rank 1", "killed", "CheckpointError"]),
    "raises_in_forward": (
        1,
        ["rank 1", "failed in forward() of step 2: ValueError: sample 17 has no label"],
    ),
    "raises_on_first_rank": (1, ["rank 0", "failed: KeyError: 'labels'"]),
    "raises_in_own_code": (1, ["rank 1", "failed: OSError: data set is gone"]),
    "caught_by_the_script": (5, ["rank 1", "forward() of step 2: ValueError: sample 17"]),
    "cannot_start": (1, ["ValueError: rank 1 cannot start", "overlap_com"]),
    "out_of_memory_while_building": (
        1,
        ["rank 1", "failed in initialize(): MemoryError: no memory for the shards"],
    ),
    "disk_full": (
        1,
        ["rank 1", "failed in initialize(): OSError: [Errno 27] File too large: cannot create"],
    ),
    "tile_cannot_be_read": (1, ["rank 1", "failed in step() of step 2: OSError: read 0 of"]),
    "leaves_early": (0, ["rank 1", "had already ended its training"]),
    "aborts_alone": (
        1,
        [
            "rank 1",
            "failed in backward() of micro step 2: OutOfMemoryError: simulated",
            "not on every other rank",
        ],
    ),
    "leaves_early ahead": (0, ["rank 1", "had already ended its training"]),
    # Hosts that run ahead notice a failure in any later phase, at the latest where they read.
    "killed_in_backward ahead": (KILLED, ["rank 1", "killed"]),
    "raises_in_forward ahead": (1, ["rank 1", "forward() of step 2: ValueError: sample 17"]),
    "raises_on_first_rank ahead": (1, ["rank 0", "failed: KeyError: 'labels'"]),
    "caught_by_the_script ahead": (5, ["rank 1", "forward() of step 2: ValueError: sample 17"]),
    "aborts_alone ahead": (
        1,
        [
            "failed in backward() of micro step 2: OutOfMemoryError: simulated",
            "not on every other rank",
        ],
    ),
    "fails_in_different_blocks ahead": (
        1,
        [
            "failed in forward() of micro step 2: OutOfMemoryError: simulated",
            "had issued 3 collectives when it failed and rank 1 4 (group 0 of 3 ranks, gloo)",
        ],
    ),
}
"""By case: exit code of the failing rank, and texts in the output of each other rank."""

STRAGGLERS = {
    "lags": [
        "ranks 0, 2 have been waiting in forward() of step 2 for",
        "rank 1",
        "has been outside of the engine for",
        "(last: step(), 1 step(s) done)",
        "(busy_with_data)",
    ],
    "lags ahead": ["ranks 0, 2 have been waiting in", "(busy_with_data)"],
    "first_rank_stops": ["forward() of step 2", "rank 0 does not respond"],
    "first_rank_stops ahead": ["rank 0 does not respond"],
    "no_data_left": [
        "rank 1",
        "has been in save_checkpoint() after step 1",
        "ranks 0, 2 have been waiting in",
    ],
}
"""By case: texts in the report of a rank that delays the others."""


ENDS_WELL = ("ends_well", "fails_alike", "joins_late")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Exit codes and outputs of the ranks by case, and the directory the cases wrote to."""
    folder = tmp_path_factory.mktemp("peers")
    cases = [*CASES, *STRAGGLERS, "hangs", *ENDS_WELL]
    ran = run_script("peers", str(folder), *cases, seconds=300)
    lines = ran.stdout.splitlines()
    assert len(lines) == len(cases), ran.stderr[-3000:]
    return {"folder": folder} | {
        case: (json.loads(line), [(folder / case / f"{r}.log").read_text() for r in range(3)])
        for case, line in zip(cases, lines, strict=True)
    }


@pytest.mark.parametrize("case", CASES)
def test_other_ranks_report_failed_rank_and_exit(runs: dict[str, Any], case: str) -> None:
    code, texts = CASES[case]
    codes, logs = runs[case]
    failing = 0 if "rank 0" in texts else 1
    assert codes[failing] == code
    for rank in {0, 1, 2} - {failing}:
        assert codes[rank] == 1
        assert [text for text in texts if text not in logs[rank]] == [], logs[rank]


def test_hanging_rank_exits_with_the_reason(runs: dict[str, Any]) -> None:
    codes, logs = runs["hangs"]
    assert codes == [0, KILLED, 1]
    assert "cannot finish forward() of step 2: rank 1" in logs[2]


@pytest.mark.parametrize("case", STRAGGLERS)
def test_straggler_is_named(runs: dict[str, Any], case: str) -> None:
    codes, logs = runs[case]
    log = logs[1 if case.startswith("first_rank_stops") else 0]
    assert [text for text in STRAGGLERS[case] if text not in log] == [], logs
    if case != "no_data_left":
        assert codes == [0, 0, 0]  # training continued


@pytest.mark.parametrize("case", ENDS_WELL)
def test_ranks_without_engine_may_exit_in_any_way(runs: dict[str, Any], case: str) -> None:
    codes, logs = runs[case]
    assert codes == [0, 0, 0]
    # Since torch 2.15, triton reports leaks at exit.
    assert [log.partition("nanobind: leaked")[0] for log in logs] == ["", "", ""]


def test_rank_killed_in_save_leaves_last_checkpoint_intact(runs: dict[str, Any]) -> None:
    saved = runs["folder"] / "killed_in_save" / "saved"
    assert (saved / "latest").read_text() == "global_step1"
    assert [path.name for path in saved.glob("global_step*")] == ["global_step1"]
    from dsengine.checkpoints import Checkpointer, TrainingState
    from engine_storage.jobs.toy import ToyModel

    model = ToyModel()
    path, _ = Checkpointer().load(TrainingState(module=model), saved)
    assert path == str(saved / "global_step1")
    assert int(model.calls) == 1


def test_forked_child_closes_connections_of_parent() -> None:
    """A data loader's worker outlives a killed rank for seconds; the others must not wait."""
    from dsengine.communication.peers.links import Server
    from dsengine.communication.peers.message import Message

    server = Server(Message(0, "here", 1, MessageKind.JOINED), ["127.0.0.1"], lambda _: None)
    child = os.fork()
    if child == 0:
        server.close_after_fork()
        os._exit(0 if server._socket.fileno() == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert server._socket.fileno() != -1
    server.close()
    server.thread.join(10)
    assert server._socket.fileno() == -1


def test_unauthenticated_messages_are_ignored() -> None:
    import socket

    from dsengine.communication.peers.links import Server
    from dsengine.communication.peers.message import Message

    received: list[Message] = []
    server = Server(Message(0, "here", 1, MessageKind.JOINED), ["127.0.0.1"], received.append)
    forged = Message(1, "there", 2, MessageKind.FAILED, "", "forged").to_line()
    for greeting in (b"guess " + forged, b"\xff\xfe\n", b"x" * 100_000):
        with socket.create_connection(("127.0.0.1", server.address.port)) as stranger:
            stranger.sendall(greeting)
            with suppress(ConnectionResetError):  # or a normal close
                assert stranger.recv(1) == b""
    assert received == []
    server.close()
    server.thread.join(10)


def test_client_ends_quietly_if_rank_0_ends_before_it_accepts_the_connection() -> None:
    import socket
    import struct

    from dsengine.communication.peers.links import Address, Client
    from dsengine.communication.peers.message import Message

    received: list[Message] = []
    with socket.create_server(("127.0.0.1", 0)) as rank_0:
        address = Address(["127.0.0.1"], rank_0.getsockname()[1], "ask", "tell", "here", 1)
        Client(Message(1, "here", 2, MessageKind.JOINED), lambda: address, received.append)
        (thread,) = (t for t in threading.enumerate() if t.name == "dsengine-peers")
        connection, _ = rank_0.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # without lingering: the client reads ECONNRESET
    thread.join(10)  # pytest reports an exception in a thread as an error
    assert not thread.is_alive() and received == []


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A rank on a GPU after another one has failed; what was done to it."""
    done: list[str] = []
    message = Message(rank=1, host="node-b", process=7, kind=MessageKind.DIED)
    for name, value in {"failure": message, "aborted": False, "phase": None}.items():
        monkeypatch.setattr(STATUS, name, value)
    monkeypatch.setattr(abort, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(abort, "abort_communicators", lambda: done.append("aborted"))
    monkeypatch.setattr(os, "_exit", lambda code: done.append(f"exited with {code}"))
    yield done


def test_abort_that_hangs_does_not_keep_the_rank_alive(
    monkeypatch: pytest.MonkeyPatch, stuck: list[str]
) -> None:
    release = threading.Event()
    monkeypatch.setattr(abort, "abort_communicators", lambda: release.wait(60))
    monkeypatch.setattr(STATUS, "phase", "step")
    abort.end_if_stuck()
    assert stuck == ["exited with 1"] and STATUS.aborted
    release.set()


def test_script_that_waits_for_the_device_is_released(stuck: list[str]) -> None:
    """The main thread waits, as in ``loss.item()``, outside of the engine."""
    thread = threading.Thread(target=abort.end_if_stuck)
    thread.start()
    thread.join(60)
    assert stuck == ["aborted"] and STATUS.aborted


def test_phase_raises_after_communicators_were_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a device, waiting for an aborted collective does not raise."""
    message = Message(rank=1, host="node-b", process=7, kind=MessageKind.DIED)
    monkeypatch.setattr(
        "dsengine.communication.peers.phases.current_failure", lambda: message.description
    )
    monkeypatch.setattr(STATUS, "aborted", False)
    monkeypatch.setattr(STATUS, "failure", None)

    @in_phase("step")
    def step(aborts: bool) -> int:
        STATUS.failure, STATUS.aborted = message if aborts else None, aborts
        return 3

    assert step(False) == 3
    with pytest.raises(RankFailedError, match="rank 1"):
        step(True)
