"""Flight recorder dumps and py-spy stacks: which rank waits for which collective.

``tests/oracle``: recorded from two gloo processes; rank 0 waits in all_reduce, rank 1 works.
"""

import json
import pickle
from pathlib import Path

import pytest

import dsconfig
from dsconfig.failures.waiting import plain_containers

ORACLE = Path(__file__).parents[1] / "oracle"


def test_dump_shows_the_rank_that_is_absent() -> None:
    diagnosis = dsconfig.diagnose(ORACLE / "flight_recorder")
    [failure] = diagnosis.failures
    assert (failure.signature, failure.rank) == ("rank-outside-collective", 1)
    assert "rank 0: all_reduce [[8]] number 2, called from <module>" in failure.cause
    assert "rank 1: no collective after number 1" in failure.cause


def test_stacks_show_the_rank_that_is_absent() -> None:
    diagnosis = dsconfig.diagnose(ORACLE / "py_spy")
    [failure] = diagnosis.failures
    assert (failure.signature, failure.rank, failure.line) == ("rank-outside-collective", 1, 5)
    assert "rank 0: all_reduce, called from <module> (train.py:16)" in failure.cause
    assert "rank 1: not in a collective, at <module> (train.py:12)" in failure.cause


def dump(folder: Path, rank: int, name: str, number: int, state: str = "started") -> None:
    entry = {
        "frames": [{"name": "forward", "filename": "/job/model.py", "line": 40}],
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[16]],
        "state": state,
    }
    content = {"version": "2.10", "pg_config": {}, "entries": [entry]}
    (folder / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(content))


def test_ranks_in_different_collectives(tmp_path: Path) -> None:
    dump(tmp_path, 0, "all_gather", 7)
    dump(tmp_path, 1, "all_gather", 7)
    dump(tmp_path, 2, "reduce_scatter", 7)
    [failure] = dsconfig.diagnose(tmp_path).failures
    assert (failure.signature, failure.rank) == ("ranks-in-other-collectives", 2)
    assert "rank 0, 1: all_gather" in failure.cause and "rank 2: reduce_scatter" in failure.cause


def test_ranks_that_wait_together(tmp_path: Path) -> None:
    for rank in range(2):
        dump(tmp_path, rank, "all_reduce", 3)
    [failure] = dsconfig.diagnose(tmp_path).failures
    assert failure.signature == "ranks-wait-together"


def test_stacks_explain_a_timeout(tmp_path: Path) -> None:
    dump(tmp_path, 0, "all_reduce", 3)
    dump(tmp_path, 1, "all_reduce", 2, "completed")
    (tmp_path / "train.log").write_text(
        "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)\n"
    )
    diagnosis = dsconfig.diagnose(tmp_path)
    assert diagnosis.failures[0].signature == "rank-outside-collective"
    assert [each.signature for each in diagnosis.consequences] == ["nccl-timeout"]


class Dangerous:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("executed",)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_containers_are_read_without_running_code(
    protocol: int, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"version": "2", "entries": [{"a": (1, 2, 3, 4), "b": [None, True, 1.5, 2**70]}], 3: ()}
    assert plain_containers(pickle.dumps(value, protocol)) == value
    with pytest.raises(ValueError, match=r"names (builtins|__builtin__)"):
        plain_containers(pickle.dumps({"version": Dangerous()}, protocol))
    assert capsys.readouterr().out == ""


def test_damaged_and_foreign_pickles_are_no_failure(tmp_path: Path) -> None:
    data = (ORACLE / "flight_recorder" / "rank_0").read_bytes()
    (tmp_path / "rank_0").write_bytes(data[:500])
    (tmp_path / "rank_1").write_bytes(pickle.dumps({"version": Dangerous(), "entries": []}))
    assert dsconfig.diagnose(tmp_path).failures == ()
    for end in range(0, len(data), 37):
        with pytest.raises(ValueError):
            plain_containers(data[:end])
