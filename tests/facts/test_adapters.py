"""LoRA adapters: placement, element counts and kept activations."""

import pytest

from dsconfig.cost.activations import Style, block_bytes
from dsconfig.facts.adapters import adapters_of, with_adapters
from dsconfig.facts.gathering import gather


def llama():
    tree = gather(model="llama-2-7b", gpus=1).model
    assert tree is not None
    return tree


def test_only_adapters_are_trainable() -> None:
    """PEFT prints 4,194,304 trainable parameters for Llama-2-7B, rank 8 at q_proj and v_proj."""
    adapted = with_adapters(llama(), 8, ["q_proj", "v_proj"])
    assert adapted.trainable == 4_194_304
    assert adapted.parameters == llama().parameters + 4_194_304


def test_all_linear_excludes_the_head() -> None:
    """Rank 64 at all seven linear layers of 32 blocks: 159,907,840."""
    assert with_adapters(llama(), 64).trainable == 159_907_840


def test_shared_input_is_kept_once() -> None:
    found = adapters_of(with_adapters(llama(), 8, ["q_proj", "k_proj", "down_proj"]))
    assert found is not None
    assert (found.inputs, found.inner, found.ranks) == (4096, 11008, 24)
    assert found.attention_output == found.dropped == 0


def test_dropout_keeps_an_input_per_adapter() -> None:
    found = adapters_of(with_adapters(llama(), 8, ["q_proj", "v_proj"], dropout=True))
    assert found is not None
    assert (found.inputs, found.dropped) == (0, 8192)


def test_conv1d_weight_is_transposed() -> None:
    tree = gather(model="gpt2", gpus=1).model
    assert tree is not None
    assert with_adapters(tree, 4, ["c_attn"]).trainable == 12 * 4 * (768 + 2304)


def test_fully_trained_model_has_no_adapters() -> None:
    assert adapters_of(llama()) is None


def test_block_with_adapters_keeps_fewer_activations() -> None:
    tree = with_adapters(llama(), 8)
    assert tree.architecture is not None
    adapted = block_bytes(tree.architecture, Style(), adapters_of(tree))
    assert adapted.linear < block_bytes(tree.architecture, Style()).linear


@pytest.mark.parametrize("targets", [["nonsense"], ["lm_head"], ["q_proj", "c_attn"], []])
def test_unknown_target_lists_the_linear_layers(targets: list[str]) -> None:
    with pytest.raises(
        ValueError, match=r"not a linear layer .* choose from down_proj, gate_proj, k_proj, o_proj"
    ):
        with_adapters(llama(), 8, targets)


def test_adapters_require_known_tensors() -> None:
    facts = gather(params=7e9, gpus=1)
    assert facts.model is not None
    with pytest.raises(ValueError, match="trainable="):
        with_adapters(facts.model, 8)
