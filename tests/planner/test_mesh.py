"""Meshes along five axes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsconfig.facts import Facts
from dsconfig.mesh import Degrees, Mesh, ranks_per_node

DEGREE = st.integers(1, 4)


@given(DEGREE, DEGREE, DEGREE, DEGREE, DEGREE)
def test_axes_multiply_to_world_size(p: int, r: int, s: int, q: int, t: int) -> None:
    mesh = Mesh(pipeline=p, replicate=r, shard=s, sequence=q, tensor=t)
    assert mesh.world_size == p * r * s * q * t
    assert mesh.data_parallel == r * s
    assert mesh.gradient_ranks == r * s * q == mesh.replicate * mesh.state_ranks


def test_tensor_parallel_ranks_are_adjacent() -> None:
    mesh = Mesh(pipeline=2, shard=2, tensor=2)
    assert mesh.groups("tensor") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert mesh.groups("pipeline") == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_group_along_two_axes() -> None:
    mesh = Mesh(replicate=2, shard=2, sequence=2)
    assert mesh.groups("shard", "sequence") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert mesh.groups("replicate") == ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("group", "expected"), [(0, (1, 8)), (-1, (1, 8)), (4, (2, 4)), (8, (1, 8)), (16, (1, 8))]
)
def test_shard_groups(group: int, expected: tuple[int, int]) -> None:
    mesh = Mesh.over(8, sharded=True, group=group)
    assert (mesh.replicate, mesh.shard) == expected


def test_unsharded_states_are_replicated() -> None:
    assert Mesh.over(8, sharded=False, group=4) == Mesh(replicate=8)


def test_other_axes_reduce_data_parallel_size() -> None:
    degrees = Degrees(tensor=2, sequence=2, pipeline=2)
    mesh = Mesh.over(16, degrees, sharded=True)
    assert mesh == Mesh(pipeline=2, shard=2, sequence=2, tensor=2)
    assert Facts(world_size=16, degrees=degrees).data_parallel == mesh.data_parallel


def test_experts_divide_data_parallel_ranks() -> None:
    mesh = Mesh(replicate=2, shard=4, tensor=2, expert=4)
    assert mesh.world_size == 16
    assert mesh.groups("expert")[:2] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert mesh.groups("expert_data")[:2] == ((0, 8), (1, 9))
    assert mesh.groups("expert_data", "expert") == mesh.groups("replicate", "shard")


def test_share_is_rounded_up() -> None:
    assert Mesh(shard=4, sequence=2).part(17) == 3
    assert Mesh(replicate=4).part(17) == 17


@pytest.mark.parametrize(
    ("world", "nodes", "expected"), [(8, None, 8), (12, None, 6), (9, 2, 5), (1, None, 1)]
)
def test_ranks_on_fullest_node(world: int, nodes: int | None, expected: int) -> None:
    assert ranks_per_node(world, nodes) == expected
