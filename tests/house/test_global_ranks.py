"""Only the topology, communication and observation of the engine know all ranks."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

ENGINE = Path(__file__).parents[2] / "engine" / "dsengine"
KNOW_ALL_RANKS = ("topology.py", "communication", "observation")
COLLECTIVES = {name for name in dir(dist) if name.startswith(("all_", "batch_", "broad", "reduce"))}
COLLECTIVES |= {"barrier", "gather", "gather_object", "monitored_barrier", "scatter"}
COLLECTIVES |= {"scatter_object_list", "send", "recv", "isend", "irecv"}
MAKE_GROUPS = {"new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh"}
DEFAULT_GROUP = {"WORLD", "_get_default_group"}


def called(node: ast.Call) -> str:
    """Return the name of a function of torch.distributed that is called, "" for others."""
    match node.func:
        case ast.Attribute(
            value=ast.Name(id="dist") | ast.Attribute(attr="distributed"), attr=name
        ):
            return name
        case ast.Name(id=name) if name in MAKE_GROUPS | {"get_rank", "get_world_size"}:
            return name
    return ""


def uses_of_all_ranks(tree: ast.Module) -> Iterator[str]:
    """Yield expressions that use the default process group."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name in DEFAULT_GROUP:
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Call(args=args, keywords=keywords):
                name, named = called(node), {keyword.arg for keyword in keywords}
                ungrouped_size = name in ("get_rank", "get_world_size") and not args and not named
                ungrouped_collective = name in COLLECTIVES and "group" not in named
                if ungrouped_size or ungrouped_collective or name in MAKE_GROUPS:
                    yield f"{node.lineno}: {ast.unparse(node)}"


def test_mechanisms_take_their_group_from_the_topology() -> None:
    found = [
        f"{path.relative_to(ENGINE)}:{use}"
        for path in sorted(ENGINE.rglob("*.py"))
        if path.relative_to(ENGINE).parts[0] not in KNOW_ALL_RANKS
        for use in uses_of_all_ranks(ast.parse(path.read_text()))
    ]
    assert found == [], "take the group from dsengine.topology"


@pytest.mark.parametrize(
    "text",
    [
        "dist.get_rank()",
        "torch.distributed.get_world_size()",
        "get_world_size()",
        "group = dist.group.WORLD",
        "dist.all_reduce(x)",
        "dist.all_gather_object(values, value)",
        "dist.broadcast(x, 0, async_op=True)",
        "dist.new_group(backend='gloo')",
        "init_device_mesh('cpu', (4,))",
        "dist.distributed_c10d._get_default_group()",
    ],
)
def test_use_of_all_ranks_is_found(text: str) -> None:
    assert len(list(uses_of_all_ranks(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "dist.get_rank(group)",
        "dist.get_world_size(group=group)",
        "group.rank()",
        "dist.all_reduce(x, group=group)",
        "torch.gather(x, 0, index)",
        "checkpoints.gather(value)",
        "dist.destroy_process_group(group)",
    ],
)
def test_use_of_a_group_is_allowed(text: str) -> None:
    assert list(uses_of_all_ranks(ast.parse(text))) == []
