"""Process groups of a topology on torch's fake backend, compared with the pure mesh."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch.distributed as dist

from dsconfig import Mesh
from dsengine import topology
from dsengine.topology import AXES, Topology
from dsengine.torch_private.dry_runs import fake_process_group

pytestmark = pytest.mark.torch
EVERY_AXIS = Mesh(pipeline=2, replicate=2, shard=2, sequence=2, tensor=2, expert=2)


def factorizations(ranks: int, factors: int) -> Iterator[tuple[int, ...]]:
    """Yield every ordered product of ``factors`` numbers that is ``ranks``."""
    if factors == 0:
        yield from [()] if ranks == 1 else []
        return
    for first in range(1, ranks + 1):
        if ranks % first == 0:
            yield from ((first, *rest) for rest in factorizations(ranks // first, factors - 1))


def layouts(ranks: int) -> Iterator[Mesh]:
    """Yield every mesh of ``ranks``, each with one of its possible divisions of experts."""
    axes = list(Mesh().axes)
    for index, degrees in enumerate(factorizations(ranks, len(axes))):
        mesh = Mesh(**dict(zip(axes, degrees, strict=True)))
        data = mesh.data_parallel
        experts = [degree for degree in range(1, data + 1) if data % degree == 0]
        yield replace(mesh, expert=experts[index % len(experts)])


@contextmanager
def running(mesh: Mesh, rank: int) -> Iterator[Topology]:
    with fake_process_group(rank, mesh.world_size, "gloo"):
        yield Topology(mesh, "cpu")


def check_groups(mesh: Mesh, rank: int) -> None:
    with running(mesh, rank) as ranks:
        for name, axes in AXES.items():
            own = next(group for group in mesh.groups(*axes) if rank in group)
            found = dist.get_process_group_ranks(ranks.group(name))
            assert (tuple(found), ranks.size(name)) == (own, len(own)), (mesh, name, rank)
            assert ranks.rank(name) == own.index(rank), (mesh, name, rank)
        assert ranks.size("samples") == mesh.data_parallel
        assert ranks.size("gradients") == mesh.gradient_ranks
        states = ranks.state_mesh
        assert states.shape == ((mesh.replicate,) * (mesh.replicate > 1) + (mesh.state_ranks,))
        assert states.get_local_rank(states.ndim - 1) == ranks.rank("states")


@pytest.mark.parametrize("ranks", range(1, 17))
def test_groups_equal_those_of_the_mesh(ranks: int) -> None:
    for index, mesh in enumerate(layouts(ranks)):
        check_groups(mesh, index % ranks)


@pytest.mark.long
@pytest.mark.parametrize("ranks", range(17, 65))
def test_groups_of_larger_layouts_equal_those_of_the_mesh(ranks: int) -> None:
    for index, mesh in enumerate(layouts(ranks)):
        check_groups(mesh, index % ranks)


def test_groups_of_every_rank() -> None:
    for rank in range(EVERY_AXIS.world_size):
        check_groups(EVERY_AXIS, rank)


@pytest.mark.parametrize("mesh", [Mesh(shard=8), Mesh(replicate=8), Mesh(tensor=8), Mesh()])
def test_topology_of_one_axis_creates_no_group(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_process_group(0, mesh.world_size, "gloo"):
        monkeypatch.setattr(dist, "new_group", None)
        ranks = Topology(mesh, "cpu")
        assert ranks.group("all") is dist.group.WORLD
        assert "devices" not in vars(ranks)


def test_groups_exist_after_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may ask for different groups later, and creating one is collective."""
    with running(EVERY_AXIS, 5) as ranks:
        monkeypatch.setattr("torch.distributed.device_mesh.new_group", None)
        for name in AXES:
            assert ranks.group(name).size() == ranks.size(name)


def test_tensor_parallel_ranks_have_the_gradients_of_their_slice() -> None:
    with running(Mesh(shard=2, tensor=2), 3) as ranks:
        assert dist.get_process_group_ranks(ranks.group("gradients")) == [1, 3]
        assert dist.get_process_group_ranks(ranks.group("tensor")) == [2, 3]


def test_host_group_has_the_same_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On gloo the fake store cannot create groups."""
    for name in ("new_group", "new_subgroups_by_enumeration"):
        create = getattr(dist, name)
        monkeypatch.setattr(
            dist, name, lambda *args, create=create, backend: create(*args, backend="fake")
        )
    with running(Mesh(shard=2, tensor=2), 3) as ranks:
        for name in ("samples", "tensor", "all"):
            group = ranks.new_host_group(name)
            assert group is not ranks.group(name)
            expected = dist.get_process_group_ranks(ranks.group(name))
            assert dist.get_process_group_ranks(group) == expected


def test_current_topology_is_replaced_with_the_process_group() -> None:
    with running(Mesh(tensor=2), 1) as ranks:
        topology.make_current(ranks)
        assert topology.current() is ranks
    with fake_process_group(2, 4, "gloo"):
        assert topology.current().size("samples") == 4
        assert topology.current().rank("samples") == 2
        assert topology.current() is topology.current()


def test_process_without_a_group_is_the_only_rank() -> None:
    assert (topology.rank(), topology.world_size()) == (0, 1)
    with pytest.raises(RuntimeError, match="init_distributed"):
        topology.all_ranks()
