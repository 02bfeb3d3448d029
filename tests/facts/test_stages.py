"""Trees of pipeline stages, joined and taken apart."""

from dsconfig.facts.model import ModelTree, ModuleFact, TensorFact
from dsconfig.facts.stages import join_stages, tree_of_stage


def linear(name: str, storage: str) -> ModuleFact:
    return ModuleFact(name, "Linear", parameters=(TensorFact("weight", (2, 3), storage=storage),))


def block(name: str) -> ModuleFact:
    return ModuleFact(name, "Block", children=(linear(f"{name}.up", f"of {name}"),))


def stage(*layers: ModuleFact) -> ModuleFact:
    tied = ModuleFact("tied", "ModuleDict", children=(linear("tied.table", "1"),))
    return ModuleFact("", "PipelineModule", children=(tied, *layers))


def test_tied_layers_are_counted_once_and_blocks_are_found() -> None:
    """Storages are those of one process: equal ones of two stages are not shared."""
    roots = [stage(block("0"), linear("1", "a")), stage(block("2"), linear("3", "a"))]
    names = [["0", "1", "tied.table"], ["2", "3", "tied.table"]]
    joined = join_stages(ModelTree(name="Model", parameters=0, trainable=0), roots, names)
    assert joined.root is not None
    assert [child.name for child in joined.root.children] == ["tied", "0", "1", "2", "3"]
    assert [module.name for module in joined.root.walk() if module.repeated] == ["0", "2"]
    assert joined.parameters == joined.trainable == 5 * 6
    for number, own in enumerate(names):
        tree = tree_of_stage(joined, number)
        assert tree.root is not None and tree.parameters == 3 * 6
        found = {name.rpartition(".")[0] for name, _ in tree.root.named_parameters()}
        assert found == {"tied.table", own[1], f"{own[0]}.up"}
