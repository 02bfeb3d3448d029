"""Sharding units: full modules, inner ones first, shared weights together, nothing twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsconfig.facts import named_model
from dsconfig.facts.model import ModelTree, ModuleFact, TensorFact
from dsconfig.runtimes.effective import Zero
from dsconfig.units import Unit, cap_of, units

CAP = 1000


def linear(name: str, rows: int, columns: int, storage: str = "") -> ModuleFact:
    return ModuleFact(name, "Linear", (TensorFact("weight", (rows, columns), storage=storage),))


def block(name: str, *children: ModuleFact) -> ModuleFact:
    return ModuleFact(name, "Block", children=children, repeated=True)


def tree(*children: ModuleFact, own: tuple[TensorFact, ...] = ()) -> ModelTree:
    root = ModuleFact("", "Model", own, children=children)
    return ModelTree(name="m", parameters=root.elements, trainable=root.elements, root=root)


def modules(found: tuple[Unit, ...]) -> list[tuple[str, ...]]:
    return [unit.modules for unit in found]


def test_each_block_of_the_stack_is_a_unit() -> None:
    stack = ModuleFact(
        "layers",
        "ModuleList",
        children=tuple(block(f"layers.{i}", linear(f"layers.{i}.up", 8, 8)) for i in range(3)),
    )
    assert modules(units(tree(stack), CAP)) == [("layers.0",), ("layers.1",), ("layers.2",)]


def test_leaves_outside_blocks_merge_up_to_the_cap() -> None:
    leaves = [linear(name, 20, 20) for name in ("a", "b", "c")]
    assert modules(units(tree(*leaves), 800)) == [("a", "b"), ("c",)]


def test_leaves_before_and_after_the_stack_are_not_merged() -> None:
    stack = ModuleFact("h", "ModuleList", children=(block("h.0", linear("h.0.up", 8, 8)),))
    found = units(tree(linear("embed", 4, 4), stack, linear("head", 4, 4)), CAP)
    assert modules(found) == [("embed",), ("h.0",), ("head",)]


def test_large_leaf_comes_before_its_block() -> None:
    inside = block("h.0", linear("h.0.q", 4, 4), linear("h.0.up", 64, 64))
    found = units(tree(ModuleFact("h", "ModuleList", children=(inside,))), CAP)
    assert modules(found) == [("h.0.up",), ("h.0",)]
    assert found[1].parameters == ("h.0.q.weight",)


def test_tied_weights_share_a_unit_and_are_counted_once() -> None:
    stack = ModuleFact("h", "ModuleList", children=(block("h.0", linear("h.0.up", 8, 8)),))
    found = units(tree(linear("embed", 9, 4, "e"), stack, linear("head", 9, 4, "e")), CAP)
    assert modules(found) == [("embed", "head"), ("h.0",)]
    assert found[0].parameters == ("embed.weight",)
    assert found[0].elements == 36


def test_tied_leaf_is_sharded_before_its_block() -> None:
    blocks = tuple(
        block(f"h.{i}", linear(f"h.{i}.big", 64, 64, "shared"), linear(f"h.{i}.q", 4, 4))
        for i in range(2)
    )
    found = units(tree(ModuleFact("h", "ModuleList", children=blocks)), CAP)
    assert modules(found) == [("h.0.big", "h.1.big"), ("h.0",), ("h.1",)]


def test_uncalled_container_parameters_go_to_the_called_parent() -> None:
    listed = ModuleFact("prompts", "ParameterList", (TensorFact("0", (5,)),))
    found = units(tree(linear("a", 4, 4), listed), CAP)
    assert modules(found) == [("a",), ("",)]
    assert found[1].parameters == ("prompts.0",)


def test_multihead_attention_is_not_split() -> None:
    attention = ModuleFact(
        "attn",
        "MultiheadAttention",
        (TensorFact("in_proj_weight", (96, 32)),),
        children=(linear("attn.out_proj", 64, 64),),
    )
    assert modules(units(tree(attention), CAP)) == [("attn",)]


def test_root_parameters_are_the_last_unit() -> None:
    found = units(tree(linear("a", 4, 4), own=(TensorFact("cls", (7,)),)), CAP)
    assert modules(found) == [("a",), ("",)]


@pytest.mark.parametrize("name", ["llama-2-7b", "gpt2", "qwen2.5-0.5b", "mistral-7b"])
@settings(deadline=None, max_examples=20)
@given(cap=st.integers(1, 10**9))
def test_every_parameter_is_in_exactly_one_unit(name: str, cap: int) -> None:
    model = named_model.model(name)
    found = units(model, cap)
    owned = [parameter for unit in found for parameter in unit.parameters]
    assert len(owned) == len(set(owned))
    assert sum(unit.elements for unit in found) == model.parameters
    assert model.root is not None
    names = {module.name for module in model.root.walk()}
    assert all(module in names for unit in found for module in unit.modules)


def test_the_cap_is_a_quarter_of_a_small_model_and_the_bucket_of_a_large_one() -> None:
    small, large = tree(linear("a", 20, 20)), named_model.model("llama-2-70b")
    assert cap_of(Zero(stage=2), small) == 100
    assert cap_of(Zero(stage=2), large) == 500_000_000
    assert cap_of(Zero(stage=3, max_live_parameters=2_000_000), large) == 262_144_000


def test_cap_below_one_is_rejected() -> None:
    with pytest.raises(ValueError, match="positive"):
        units(tree(linear("a", 4, 4)), 0)
