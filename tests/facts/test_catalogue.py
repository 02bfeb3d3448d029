"""Models and cards by name: exact counts, tolerant names, help on a miss."""

import pytest

from dsconfig.facts import FactError, catalogue, gather, named_model
from dsconfig.facts.machine import named_device

MODELS = {entry["name"]: entry for entry in catalogue.models()}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_the_published_counts(name):
    entry, tree = MODELS[name], named_model.model(name)
    assert tree.parameters == entry["params"]
    assert tree.largest_tensor == entry["largest_tensor_params"]
    assert tree.largest_module == entry["largest_module_params"]
    assert tree.largest_block == entry["largest_block_params"]
    assert tree.hidden_size == entry["hidden_size"]


@pytest.mark.parametrize("name", [n for n in MODELS if named_model.model(n).root is not None])
def test_a_tree_has_as_many_tensors_as_the_real_model(name):
    tree = named_model.model(name)
    assert tree.root is not None
    assert len(list(tree.root.unique_parameters())) == MODELS[name]["n_param_tensors"]


def test_blocks_of_the_stack_are_marked_as_repeated():
    root = named_model.model("llama-2-7b").root
    assert root is not None
    blocks = [module.name for module in root.walk() if module.repeated]
    assert blocks == [f"model.layers.{index}" for index in range(32)]


def test_tied_embeddings_are_counted_once_but_stand_at_both_places():
    root = named_model.model("gpt2").root
    assert root is not None
    names = [name for name, _ in root.named_parameters()]
    assert "lm_head.weight" in names and "transformer.wte.weight" in names
    assert root.elements == 124_439_808


@pytest.mark.parametrize("name", ["llama-2-13b", "LLaMA 2 13B", "meta-llama/Llama-2-13b-hf"])
def test_case_and_separators_of_a_model_name_do_not_matter(name):
    assert gather(model=name).model.parameters == 13_015_864_320


def test_a_name_that_is_near_a_model_is_answered_with_the_nearest():
    with pytest.raises(FactError, match=r"--model.*llama-2-13b.*--params"):
        gather(model="lama-2-13b")


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("a100-80gb", "A100-SXM4-80GB"),
        ("v100-16gb", "V100-SXM2-16GB"),
        ("h100", "H100-SXM5-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("A100-PCIe-40GB", "A100-PCIe-40GB"),
        ("Tesla T4", "T4"),
        ("rtx 3090", "RTX-3090"),
        ("4090", "RTX-4090"),
        ("mi300x", "MI300X"),
        ("gaudi2", "Gaudi2"),
    ],
)
def test_a_card_is_found_by_what_people_call_it(name, card):
    assert named_device(name).name == card


@pytest.mark.parametrize(
    ("name", "card", "memory", "compute"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100-SXM4-80GB", 1 / 8, 1 / 7),
        ("a100-40gb-mig-3g.20gb", "A100-SXM4-40GB", 1 / 2, 3 / 7),
        ("h100 7g.80gb", "H100-SXM5-80GB", 1, 1),
        ("a30 2g.12gb", "A30", 1 / 2, 1 / 2),
    ],
)
def test_an_instance_of_a_card_is_a_part_of_it(name, card, memory, compute):
    part, whole = named_device(name), named_device(card)
    assert part.memory_bytes == pytest.approx(whole.memory_bytes * memory)
    assert part.memory_gb_per_second == pytest.approx(whole.memory_gb_per_second * memory)
    assert part.tflops_16bit == pytest.approx(whole.tflops_16bit * compute)
    assert part.link_gb_per_second is None
    assert part.name.startswith(f"{card} MIG ")


def test_an_instance_beyond_its_card_is_refused():
    with pytest.raises(FactError, match="more than there is of a card A100-SXM4-40GB"):
        named_device("a100-40gb mig 7g.80gb")


def test_links_are_one_direction():
    assert named_device("a100-80gb").link_gb_per_second == 300


def test_a_card_in_no_catalogue_is_taken_with_its_memory_given():
    device = gather(device="tpu-v9", device_memory="64GiB").device
    assert device.memory_bytes == 64 * 2**30
    with pytest.raises(FactError, match="--device"):
        gather(device="tpu-v9")


def test_rates_that_were_looked_up_say_where() -> None:
    sources = {card["name"]: card.get("rates_source", "") for card in catalogue.gpus()}
    for name in ("A800-SXM4-80GB", "H20-SXM-96GB", "B200-SXM-180GB", "MI325X", "RTX-5090", "L40S"):
        assert sources[name], name
    assert all(card["rates_source"] for card in catalogue.gpus() if "rates_source" in card)


def test_a_name_that_is_cut_short_is_answered_with_what_begins_so() -> None:
    known = ("A10", "A10G", "H100-SXM5-80GB", "H100-PCIe-80GB")
    said = str(catalogue.unknown("--device", "h10", known, ""))
    assert "near it: H100-SXM5-80GB, H100-PCIe-80GB, A10" in said
