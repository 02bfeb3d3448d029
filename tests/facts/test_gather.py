"""Facts from flags and files: each with its origin, each mistake with its remedy."""

import json

import pytest

from dsconfig.facts import FactError, gather


def test_every_fact_knows_where_it_came_from():
    facts = gather(world_size=16, device="h100", params="7B", micro_batch=2)
    assert facts.origins["world_size"] == "--gpus"
    assert facts.origins["device"] == "--device"
    assert facts.origins["model"] == "--params"
    assert facts.origins["micro_batch_size"] == "--micro-batch"
    assert facts.origins["nodes"].startswith("assumed")
    assert facts.nodes == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [("13e9", 13_000_000_000), ("13B", 13_000_000_000), ("700M", 700_000_000), ("1.5b", 1.5e9)],
)
def test_a_parameter_count_is_read_as_people_write_it(text, count):
    model = gather(params=text).model
    assert model.parameters == count
    assert model.assumed, "an imagined architecture is stated"


@pytest.mark.parametrize("count", ["1M", "125M", "1.3B", "7B", "13B", "70B", "405B", "1T"])
def test_the_imagined_architecture_is_close_to_the_count(count):
    model = gather(params=count).model
    shape = model.architecture
    layer = 4 * shape.hidden_size**2 + 3 * shape.hidden_size * shape.intermediate_size
    total = shape.layers * layer + 2 * shape.vocab_size * shape.hidden_size
    assert total == pytest.approx(model.parameters, rel=0.08)
    assert shape.heads * shape.width_of_head == shape.hidden_size


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"world_size": 0}, "--gpus.*above zero"),
        ({"world_size": 6, "tensor_parallel": 4}, "--gpus.*give 4 or 8"),
        ({"world_size": 6, "nodes": 4}, "--nodes"),
        ({"tensor_parallel": "2"}, "--tensor-parallel.*integer"),
        ({"micro_batch": 0}, "--micro-batch.*above zero"),
        ({"global_batch": -8}, "--global-batch.*above zero"),
        ({"accumulation": 1.5}, "--accumulation.*integer"),
        ({"sequence_length": -5}, "--seq-len.*above zero"),
        ({"total_steps": True}, "--total-steps.*integer"),
        ({"learning_rate": float("nan")}, "--learning-rate.*finite"),
        ({"warmup_steps": "many"}, "--warmup-steps.*number"),
        ({"host_memory": "1e400GB"}, "--host-memory.*beyond any machine"),
        ({"params": 1e400}, "--params.*13B"),
        ({"params": "1e400"}, "--params.*beyond"),
        ({"params": [1]}, "--params.*13B"),
        ({"device": 5}, "--device.*a100-80gb"),
        ({"model": 5}, "--model.*config.json"),
        ({"params": "many"}, "--params.*13B"),
        ({"params": "7B", "model": "gpt2"}, "drop one"),
        ({"host_memory": "lots"}, "--host-memory.*512GB"),
        ({"precision": "fp12"}, "--precision.*bf16"),
        ({"model": "no/such/config.json"}, "--model.*does not exist"),
        ({"training_args": {"learning_rate": "5e-5"}}, "--training-args.*without quotes"),
        ({"training_args": "no-such.json"}, "--training-args"),
        ({"accelerate_config": {"num_processes": "8"}}, "--accelerate-config.*integer"),
    ],
)
def test_a_mistake_names_the_flag_and_the_remedy(flags, said):
    with pytest.raises(FactError, match=said):
        gather(**flags)


def test_the_data_parallel_size_leaves_out_the_other_degrees():
    facts = gather(world_size=64, tensor_parallel=4, pipeline_parallel=2)
    assert facts.data_parallel == 8


def test_a_flag_wins_over_a_file(tmp_path):
    path = tmp_path / "args.json"
    path.write_text(json.dumps({"per_device_train_batch_size": 4, "bf16": True, "max_steps": 50}))
    facts = gather(training_args=path, micro_batch=2)
    assert facts.training.micro_batch_size == 2
    assert facts.training.precision == "bf16"
    assert facts.training.total_steps == 50


def test_yaml_files_are_read(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text("num_processes: 8\nnum_machines: 2\nmixed_precision: no\n")
    facts = gather(accelerate_config=path)
    assert (facts.world_size, facts.nodes, facts.training.precision) == (8, 2, "fp32")


def test_a_file_that_is_no_mapping_is_told_with_its_place(tmp_path):
    path = tmp_path / "args.json"
    path.write_text('{"a": 1,,}')
    with pytest.raises(FactError, match="line 1, column 9"):
        gather(training_args=path)


def test_this_machine_shares_its_memory_among_its_ranks():
    one, four = gather(device="cpu"), gather(device="cpu", world_size=4)
    assert four.device.memory_bytes == one.device.memory_bytes // 4
    assert one.host.memory_bytes == one.device.memory_bytes
