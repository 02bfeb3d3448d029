"""When one rank fails, the others say which and why, and end; what was saved stays."""

import json
import os
from contextlib import suppress
from typing import Any

import pytest

from dsengine.communication.peers import Message, RankFailedError, in_phase
from dsengine.communication.peers.message import Kind
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
        ["rank 1", "failed in initialize(): MemoryError: no room for the shards"],
    ),
    "no_room_for_tiles": (
        1,
        ["rank 1", "failed in initialize(): OSError: [Errno 27] File too large: nvme_path refuses"],
    ),
    "tile_cannot_be_read": (1, ["rank 1", "failed in step() of step 2: OSError: read 0 of"]),
    "leaves_early": (0, ["rank 1", "had already ended its training"]),
    "gives_up_alone": (
        1,
        [
            "rank 1",
            "failed in backward() of micro step 2: OutOfMemoryError: as far as this test goes",
            "not on every other rank",
        ],
    ),
}
"""By case: how the rank at fault ends, and what each of the others says."""


LAGGING = {
    "lags": [
        "ranks 0, 2 wait in forward() of step 2 since",
        "rank 1",
        "has been outside of the engine for",
        "(last: step(), 1 step(s) done)",
        "(busy_with_data)",
    ],
    "first_rank_stops": ["forward() of step 2", "rank 0 does not answer"],
    "no_data_left": ["rank 1", "has been in save_checkpoint() after step 1", "ranks 0, 2 wait in"],
}
"""By case: what is said, within a second, of a rank that keeps the others waiting."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Exit codes and output of each rank, by case; and where the cases wrote."""
    folder = tmp_path_factory.mktemp("peers")
    cases = [*CASES, *LAGGING, "hangs", "ends_well"]
    ran = run_script("peers", str(folder), *cases, seconds=300)
    lines = ran.stdout.splitlines()
    assert len(lines) == len(cases), ran.stderr[-3000:]
    return {"folder": folder} | {
        case: (json.loads(line), [(folder / case / f"{r}.log").read_text() for r in range(3)])
        for case, line in zip(cases, lines, strict=True)
    }


@pytest.mark.parametrize("case", CASES)
def test_every_other_rank_says_who_failed_and_ends(runs: dict[str, Any], case: str) -> None:
    ending, words = CASES[case]
    codes, logs = runs[case]
    at_fault = 0 if "rank 0" in words else 1
    assert codes[at_fault] == ending
    for rank in {0, 1, 2} - {at_fault}:
        assert codes[rank] == 1
        assert [word for word in words if word not in logs[rank]] == [], logs[rank]


def test_a_rank_that_waits_in_vain_is_ended_with_the_reason(runs: dict[str, Any]) -> None:
    codes, logs = runs["hangs"]
    assert codes == [0, KILLED, 1]
    assert "cannot finish forward() of step 2: rank 1" in logs[2]


@pytest.mark.parametrize("case", LAGGING)
def test_a_rank_that_lags_is_named(runs: dict[str, Any], case: str) -> None:
    codes, logs = runs[case]
    told = logs[1 if case == "first_rank_stops" else 0]
    assert [words for words in LAGGING[case] if words not in told] == [], logs
    if case != "no_data_left":
        assert codes == [0, 0, 0]  # and they went on


def test_ranks_that_are_done_with_training_may_end_as_they_like(runs: dict[str, Any]) -> None:
    codes, logs = runs["ends_well"]
    assert codes == [0, 0, 0]
    # Since torch 2.15, triton counts what it has leaked when a process ends.
    assert [log.partition("nanobind: leaked")[0] for log in logs] == ["", "", ""]


def test_a_rank_killed_in_a_save_costs_no_checkpoint(runs: dict[str, Any]) -> None:
    saved = runs["folder"] / "killed_in_save" / "saved"
    assert (saved / "latest").read_text() == "global_step1"
    assert [path.name for path in saved.glob("global_step*")] == ["global_step1"]
    from dsengine.checkpoints import Checkpointer, TrainingState
    from engine_storage.jobs.toy import ToyModel

    model = ToyModel()
    path, _ = Checkpointer().load(TrainingState(module=model), saved)
    assert path == str(saved / "global_step1")
    assert int(model.calls) == 1


def test_a_forked_child_holds_no_connection_of_its_parent_open() -> None:
    """A data loader's worker outlives a killed rank for seconds; the others must not wait."""
    from dsengine.communication.peers.links import Hub
    from dsengine.communication.peers.message import Kind, Message

    hub = Hub(Message(0, "here", 1, Kind.BACK), ["127.0.0.1"], lambda _: None)
    child = os.fork()
    if child == 0:
        hub.forget()
        os._exit(0 if hub._server.fileno() == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert hub._server.fileno() != -1
    hub.close()
    hub.thread.join(10)
    assert hub._server.fileno() == -1


def test_strangers_are_not_listened_to() -> None:
    import socket

    from dsengine.communication.peers.links import Hub
    from dsengine.communication.peers.message import Kind, Message

    heard: list[Message] = []
    hub = Hub(Message(0, "here", 1, Kind.BACK), ["127.0.0.1"], heard.append)
    lie = Message(1, "there", 2, Kind.FAILED, "", "a lie").to_line()
    for greeting in (b"guess " + lie, b"\xff\xfe\n", b"x" * 100_000):
        with socket.create_connection(("127.0.0.1", hub.address.port)) as stranger:
            stranger.sendall(greeting)
            with suppress(ConnectionResetError):  # or an end in good order
                assert stranger.recv(1) == b""
    assert heard == []
    hub.close()
    hub.thread.join(10)


def test_what_a_phase_computed_after_an_abort_is_not_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wait on the device for a collective that was aborted ends without an error."""
    message = Message(rank=1, host="node-b", process=7, kind=Kind.DIED)
    monkeypatch.setattr("dsengine.communication.peers.phases.standing_alarm", lambda: message.words)
    monkeypatch.setattr(STATUS, "aborted", False)
    monkeypatch.setattr(STATUS, "alarm", None)

    @in_phase("step")
    def step(aborts: bool) -> int:
        STATUS.alarm, STATUS.aborted = message if aborts else None, aborts
        return 3

    assert step(False) == 3
    with pytest.raises(RankFailedError, match="rank 1"):
        step(True)
