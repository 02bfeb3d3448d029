"""Rank and world size under every launcher."""

import pytest

from dsengine.communication.environment import (
    discover,
    first_node,
    local_rank_argument,
    node_count,
)


def placement(environment: dict[str, str], arguments: list[str] | None = None, **options: int):
    found = discover(environment, arguments or [], **options)
    return found.rank, found.world_size, found.local_rank, found.address, found.port


def test_torchrun() -> None:
    environment = {
        "RANK": "9",
        "WORLD_SIZE": "16",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "1234",
    }
    assert placement(environment) == (9, 16, 1, "node0", 1234)


def test_older_launchers_pass_the_local_rank_as_an_argument() -> None:
    environment = {"RANK": "5", "WORLD_SIZE": "8"}
    assert placement(environment, ["train.py", "--local_rank=1"])[2] == 1
    assert placement(environment, ["train.py", "--local-rank", "3"])[2] == 3
    assert local_rank_argument(["--local_rank=-1"]) is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "MASTER_ADDR": "node0",
            },
            (3, 4, 1, "node0", 29500),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"},
            (1, 2, 1, "127.0.0.1", 29500),
        ),
        (
            {
                "MV2_COMM_WORLD_RANK": "1",
                "MV2_COMM_WORLD_SIZE": "2",
                "MV2_COMM_WORLD_LOCAL_RANK": "1",
            },
            (1, 2, 1, "127.0.0.1", 29500),
        ),
    ],
)
def test_mpirun(environment: dict[str, str], expected: tuple[object, ...]) -> None:
    assert placement(environment) == expected


def test_mpirun_on_several_nodes_needs_the_first_nodes_address() -> None:
    environment = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        discover(environment, [])


def test_srun_takes_the_first_node_of_the_step() -> None:
    environment = {
        "SLURM_PROCID": "5",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NODELIST": "gpu[03-05,09],other1",
    }
    assert placement(environment) == (5, 8, 1, "gpu03", 29500)


def test_a_batch_script_without_srun_is_one_process() -> None:
    assert placement({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"})[:2] == (0, 1)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a1", "a1"), ("a1,b2", "a1"), ("n[7-9]x,m", "n7x"), ("n[001,004]", "n001"), ("", "")],
)
def test_first_node(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_spawned_processes_pass_rank_and_world_size() -> None:
    assert placement({}, rank=1, world_size=2) == (1, 2, 1, "127.0.0.1", 29500)


def test_empty_environment_is_a_single_process() -> None:
    assert placement({}) == (0, 1, 0, "127.0.0.1", 29500)


def test_incomplete_environment_is_refused() -> None:
    with pytest.raises(ValueError, match="RANK and WORLD_SIZE"):
        discover({"WORLD_SIZE": "4"}, [])
    with pytest.raises(ValueError, match="rank 4 is out of range for world size 4"):
        discover({"RANK": "4", "WORLD_SIZE": "4"}, [])


@pytest.mark.parametrize(
    ("environment", "world_size", "nodes"),
    [
        ({}, 8, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 16, 2),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 16, 4),
        ({"SLURM_STEP_NUM_NODES": "3"}, 24, 3),
        ({"LOCAL_WORLD_SIZE": "8", "SLURM_STEP_NUM_NODES": "1"}, 16, 2),
    ],
)
def test_nodes_are_counted(environment: dict[str, str], world_size: int, nodes: int) -> None:
    """torchrun takes precedence over a Slurm step, which has one task per node."""
    assert node_count(world_size, environment) == nodes
