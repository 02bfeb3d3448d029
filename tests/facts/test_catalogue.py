"""Models and GPUs by name: exact counts, tolerant names, suggestions for unknown names."""

import pytest
from typer.testing import CliRunner

from dsconfig.commands.app import app
from dsconfig.facts import FactError, catalogue, gather, named_model
from dsconfig.facts.machine import named_device
from narrowing import not_none

MODELS = {entry["name"]: entry for entry in catalogue.models()}


@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_published_parameter_counts(name):
    entry, tree = MODELS[name], named_model.model(name)
    assert tree.parameters == entry["params"]
    assert tree.largest_tensor == entry["largest_tensor_params"]
    assert tree.largest_module == entry["largest_module_params"]
    assert tree.largest_block == entry["largest_block_params"]
    assert tree.hidden_size == entry["hidden_size"]


@pytest.mark.parametrize("name", [n for n in MODELS if named_model.model(n).root is not None])
def test_tree_has_as_many_tensors_as_the_real_model(name):
    tree = named_model.model(name)
    assert tree.root is not None
    assert len(list(tree.root.unique_parameters())) == MODELS[name]["n_param_tensors"]


def test_transformer_blocks_are_marked_as_repeated():
    root = named_model.model("llama-2-7b").root
    assert root is not None
    blocks = [module.name for module in root.walk() if module.repeated]
    assert blocks == [f"model.layers.{index}" for index in range(32)]


def test_tied_embeddings_are_counted_once_and_listed_twice():
    root = named_model.model("gpt2").root
    assert root is not None
    names = [name for name, _ in root.named_parameters()]
    assert "lm_head.weight" in names and "transformer.wte.weight" in names
    assert root.elements == 124_439_808


@pytest.mark.parametrize("name", ["llama-2-13b", "LLaMA 2 13B", "meta-llama/Llama-2-13b-hf"])
def test_model_name_ignores_case_and_separators(name):
    assert not_none(gather(model=name).model).parameters == 13_015_864_320


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("unsloth/gemma-3-1b-it", "gemma-3-1b"),
        ("unsloth/Llama-3.2-1B-Instruct", "llama-3.2-1b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3.1-70B", "llama-3-70b"),
        ("NousResearch/Llama-2-13b-chat-hf", "llama-2-13b"),
        ("Qwen/Qwen3-4B-Base", "qwen3-4b"),
        ("unsloth/Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("Qwen/Qwen3-14B-Thinking-2511", "qwen3-14b"),
        ("mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("mistral-small-24b-instruct-2501", "mistral-small-24b"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
    ],
)
def test_usual_variants_of_a_name_are_the_base_model(typed: str, name: str) -> None:
    assert named_model.model(typed).name == name


@pytest.mark.parametrize(
    "typed",
    [
        "mistralai/Mistral-7B-Instruct-v0.3",  # a larger vocabulary
        "mistralai/Mistral-Small-Instruct-2409",  # 22e9
        "mistralai/Magistral-Small-2509",  # with a vision tower
        "mistralai/Ministral-3-8B-Instruct-2512",
        "Qwen/Qwen3-VL-4B-Instruct",
        "Qwen/Qwen2.5-Math-7B",
        "meta-llama/Llama-3.2-11B-Vision-Instruct",
        "microsoft/Phi-3-mini-128k-instruct",
        "Qwen/Qwen3-4",
        "unsloth/",
        "it",
        "",
    ],
)
def test_other_models_are_not_taken_for_those_of_the_catalogue(typed: str) -> None:
    with pytest.raises(FactError):
        named_model.model(typed)


def test_variants_of_a_name_never_have_another_size() -> None:
    sizes: dict[str, set[str]] = {}
    for entry in catalogue.models():
        for known in (entry["name"], entry["hf_id"], *entry.get("aliases", ())):
            owner, _, short = known.rpartition("/")
            for typed in (known, short, f"mirror/{short}", f"{short}-Instruct", f"{short}-hf"):
                sizes.setdefault(typed.lower(), set()).add(entry["name"])
                assert named_model.model(typed).parameters == entry["params"], (typed, owner)
    assert all(len(names) == 1 for names in sizes.values())


def test_unknown_model_suggests_nearest_names():
    with pytest.raises(FactError, match=r"model.*llama-2-13b.*params="):
        gather(model="lama-2-13b")


@pytest.mark.parametrize(
    ("name", "gpu"),
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
        ("NVIDIA GeForce RTX 3060", "RTX-3060"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "RTX-3060-Laptop"),
        ("NVIDIA GeForce RTX 3080", "RTX-3080-10GB"),
        ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", "RTX-3080-Ti-Laptop"),
        ("NVIDIA GeForce RTX 4060 Ti", "RTX-4060-Ti-8GB"),
        ("4060 ti 16gb", "RTX-4060-Ti-16GB"),
        ("NVIDIA GeForce RTX 4070", "RTX-4070"),
        ("NVIDIA GeForce RTX 4070 SUPER", "RTX-4070-SUPER"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX-4070-Ti-SUPER"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX-4090-Laptop"),
        ("NVIDIA GeForce RTX 5070 Ti", "RTX-5070-Ti"),
        ("NVIDIA RTX A5000", "RTX-A5000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000-96GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("Tesla P100-PCIE-16GB", "P100-PCIe-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("Ascend910B3", "Ascend-910B-64GB"),
        ("ascend 910b", "Ascend-910B-64GB"),
        ("gaudi2", "Gaudi2"),
    ],
)
def test_gpu_is_found_by_common_names(name, gpu):
    assert named_device(name).name == gpu


@pytest.mark.parametrize(
    ("name", "gpu", "memory", "compute"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100-SXM4-80GB", 1 / 8, 1 / 7),
        ("a100-40gb-mig-3g.20gb", "A100-SXM4-40GB", 1 / 2, 3 / 7),
        ("h100 7g.80gb", "H100-SXM5-80GB", 1, 1),
        ("a30 2g.12gb", "A30", 1 / 2, 1 / 2),
    ],
)
def test_mig_instance_has_a_share_of_the_gpu(name, gpu, memory, compute):
    instance, full = named_device(name), named_device(gpu)
    assert instance.memory_bytes == pytest.approx(full.memory_bytes * memory)
    assert instance.memory_gb_per_second == pytest.approx(full.memory_gb_per_second * memory)
    assert instance.tflops_16bit == pytest.approx(full.tflops_16bit * compute)
    assert instance.link_gb_per_second is None
    assert instance.name.startswith(f"{gpu} MIG ")


def test_mig_profile_larger_than_the_gpu_is_refused():
    with pytest.raises(FactError, match="larger than the GPU A100-SXM4-40GB"):
        named_device("a100-40gb mig 7g.80gb")


def test_link_bandwidth_is_one_direction():
    assert named_device("a100-80gb").link_gb_per_second == 300


def test_unknown_gpu_is_accepted_with_its_memory():
    device = gather(device="tpu-v9", device_memory="64GiB").device
    assert not_none(device).memory_bytes == 64 * 2**30
    with pytest.raises(FactError, match="device: "):
        gather(device="tpu-v9")


def test_every_gpu_has_a_named_source() -> None:
    assert all(gpu["rates_source"] for gpu in catalogue.gpus())


def test_geforce_tensor_rate_is_twice_the_fp32_rate_of_the_specification() -> None:
    """fp32 accumulation halves GeForce tensor cores: 512 FLOPs per SM and cycle."""
    multiprocessors = {"RTX-3070": (46, 1.725), "RTX-4080": (76, 2.505), "RTX-5080": (84, 2.617)}
    for name, (count, ghz) in multiprocessors.items():
        assert named_device(name).tflops_16bit == pytest.approx(512 * count * ghz / 1e3, rel=0.005)


def test_devices_command_finds_every_name_that_device_accepts() -> None:
    names = [gpu["name"] for gpu in catalogue.gpus()]
    for name in (*names, "NVIDIA GeForce RTX 4070 Laptop GPU", "Tesla V100-SXM2-32GB", "4090"):
        done = CliRunner().invoke(app, ["devices", *name.split()])
        assert done.exit_code == 0 and named_device(name).name in done.output, name
    assert "cpu" in CliRunner().invoke(app, ["devices", "cpu"]).output


def test_truncated_name_suggests_names_with_that_prefix() -> None:
    known = ("A10", "A10G", "H100-SXM5-80GB", "H100-PCIe-80GB")
    message = str(catalogue.unknown("device", "h10", known, ""))
    assert "did you mean H100-SXM5-80GB, H100-PCIe-80GB, A10?" in message


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("h300", {"H100", "H200", "H800"}), ("rtx5095", {"RTX-5090"}), ("h100-sxm9", {"H100"})],
)
def test_unknown_gpu_suggests_those_of_its_series(typed: str, expected: set[str]) -> None:
    with pytest.raises(FactError) as caught:
        named_device(typed)
    first = str(caught.value).partition("did you mean ")[2].split(", ")
    assert all(any(name.startswith(series) for name in first) for series in expected)
