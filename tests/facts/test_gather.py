"""Facts from arguments and files: origins, and errors that name the argument or flag."""

import json
from pathlib import Path

import pytest

from dsconfig.facts import FactError, gather
from dsconfig.facts.naming import Surface, read_on
from dsconfig.mesh import Degrees
from narrowing import not_none


def test_origin_of_every_fact_is_recorded():
    facts = gather(gpus=16, device="h100", params="7B", micro_batch=2)
    assert facts.origins["world_size"] == "gpus="
    assert facts.origins["device"] == "device="
    assert facts.origins["model"] == "params="
    assert facts.origins["micro_batch_size"] == "micro_batch="
    assert facts.origins["nodes"].startswith("assumed")
    assert facts.nodes == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [("13e9", 13_000_000_000), ("13B", 13_000_000_000), ("700M", 700_000_000), ("1.5b", 1.5e9)],
)
def test_parameter_count_accepts_common_notations(text, count):
    model = not_none(gather(params=text).model)
    assert model.parameters == count
    assert model.assumed, "the assumed architecture is stated"


@pytest.mark.parametrize("count", ["1M", "125M", "1.3B", "7B", "13B", "70B", "405B", "1T"])
def test_assumed_architecture_is_close_to_the_count(count):
    model = not_none(gather(params=count).model)
    shape = not_none(model.architecture)
    layer = 4 * shape.hidden_size**2 + 3 * shape.hidden_size * not_none(shape.intermediate_size)
    total = shape.layers * layer + 2 * shape.vocab_size * shape.hidden_size
    assert total == pytest.approx(model.parameters, rel=0.08)
    assert shape.heads * shape.width_of_head == shape.hidden_size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpus": 0}, "--gpus.*positive integer"),
        ({"gpus": 6, "tensor_parallel": 4}, "--tensor-parallel.*use 3"),
        ({"gpus": 6, "nodes": 4}, "--nodes"),
        ({"tensor_parallel": "2"}, "--tensor-parallel.*integer"),
        ({"micro_batch": 0}, "--micro-batch.*positive"),
        ({"global_batch": -8}, "--global-batch.*positive"),
        ({"accumulation": 1.5}, "--accumulation.*integer"),
        ({"seq_len": -5}, "--seq-len.*positive"),
        ({"total_steps": True}, "--total-steps.*integer"),
        ({"learning_rate": float("nan")}, "--learning-rate.*finite"),
        ({"warmup_steps": "many"}, "--warmup-steps.*number"),
        ({"host_memory": "1e400GB"}, "--host-memory.*larger than any machine"),
        ({"params": 1e400}, "--params.*13B"),
        ({"params": "1e400"}, "--params.*more than any model has"),
        ({"params": [1]}, "--params.*13B"),
        ({"device": 5}, "--device.*a100-80gb"),
        ({"model": 5}, "--model.*config.json"),
        ({"params": "many"}, "--params.*13B"),
        ({"params": "7B", "model": "gpt2"}, "--params.*cannot be combined with --model"),
        ({"host_memory": "lots"}, "--host-memory.*512GB"),
        ({"device_memory": "24"}, "--device-memory.*'24' is less than 1 MiB; write 24GiB"),
        ({"device_memory": 80}, "--device-memory.*80 is less than 1 MiB; write 80GiB"),
        ({"device_memory": "24564"}, "--device-memory.* write 24564MiB"),
        ({"host_memory": "64B"}, "--host-memory.*'64B' is less than 1 MiB; write a size like"),
        ({"nvme_size": "2"}, "--nvme-size.*'2' is less than 1 MiB; write 2GiB"),
        ({"lora_dropout": 2, "lora_rank": 8, "model": "gpt2"}, "--lora-dropout.*at most 1"),
        ({"gpus": 3_221_225_472}, "--gpus.*3,221,225,472 exceeds the limit of 10,000,000"),
        ({"precision": "fp12"}, "--precision.*bf16"),
        ({"model": "no/such/config.json"}, "--model.*file not found"),
        ({"training_args": {"learning_rate": "5e-5"}}, "--training-args.*without quotes"),
        ({"training_args": "no-such.json"}, "--training-args"),
        ({"accelerate_config": {"num_processes": "8"}}, "--accelerate-config.*integer"),
    ],
)
def test_error_names_the_argument_in_python_and_the_flag_on_the_command_line(arguments, message):
    with pytest.raises(FactError) as caught:
        gather(**arguments)
    flag = message.partition(".*")[0]
    assert str(caught.value).startswith(f"{flag.removeprefix('--').replace('-', '_')}: ")
    assert "--" not in str(caught.value)
    with read_on(Surface.COMMAND_LINE), pytest.raises(FactError, match=message):
        gather(**arguments)


def test_data_parallel_size_excludes_the_other_degrees():
    facts = gather(gpus=64, tensor_parallel=4, pipeline_parallel=2)
    assert facts.data_parallel == 8


def test_argument_overrides_file(tmp_path):
    path = tmp_path / "args.json"
    path.write_text(json.dumps({"per_device_train_batch_size": 4, "bf16": True, "max_steps": 50}))
    facts = gather(training_args=path, micro_batch=2)
    training = not_none(facts.training)
    assert training.micro_batch_size == 2
    assert training.precision == "bf16"
    assert training.total_steps == 50


def test_yaml_files_are_read(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text("num_processes: 8\nnum_machines: 2\nmixed_precision: no\n")
    facts = gather(accelerate_config=path)
    assert (facts.world_size, facts.nodes) == (8, 2)
    assert not_none(facts.training).precision == "fp32"


def test_invalid_json_file_is_reported_with_line_and_column(tmp_path):
    path = tmp_path / "args.json"
    path.write_text('{"a": 1,,}')
    with pytest.raises(FactError, match="line 1, column 9"):
        gather(training_args=path)


def test_host_memory_is_shared_among_cpu_ranks():
    one, four = gather(device="cpu"), gather(device="cpu", gpus=4)
    memory = not_none(not_none(one.device).memory_bytes)
    assert not_none(four.device).memory_bytes == memory // 4
    assert not_none(one.host).memory_bytes == memory


def test_degrees_of_the_trainer_and_of_accelerate() -> None:
    trainer = {"parallelism_config": {"sp_size": 4, "dp_shard_size": 2}}
    assert gather(gpus=8, training_args=trainer).degrees == Degrees(sequence=4)
    launch = {
        "distributed_type": "DEEPSPEED",
        "num_processes": 8,
        "deepspeed_config": {"zero_stage": 3},
        "parallelism_config": {
            "parallelism_config_sp_size": 2,
            "parallelism_config_dp_shard_size": 4,
        },
    }
    assert gather(accelerate_config=launch).degrees == Degrees(sequence=2)
    assert gather(gpus=8, sequence_parallel=2, training_args=trainer).degrees.sequence == 2
    assert gather(gpus=6, training_args=trainer).degrees == Degrees(), "does not divide 6 ranks"


def test_given_degree_of_1_overrides_the_arguments():
    sizes = {"parallelism_config": {"sp_size": 2}}
    assert gather(gpus=8, training_args=sizes).degrees.sequence == 2
    assert gather(gpus=8, training_args=sizes, sequence_parallel=1).degrees.sequence == 1


def test_misspelled_training_argument_is_an_error(tmp_path: Path) -> None:
    wrong = {"learning_rte": 1e-5, "bf16": True}
    message = 'training_args: learning_rte is not a TrainingArgument; did you mean "learning_rate"?'
    path = tmp_path / "args.json"
    path.write_text(json.dumps(wrong))
    for source in (wrong, path):
        with pytest.raises(FactError) as caught:
            gather(training_args=source)
        assert str(caught.value) == message


def test_argument_of_a_script_is_a_warning() -> None:
    own = {"reward_weight": 2, "learning_rte": 1e-5}
    expected = r'training_args: learning_rte is not a TrainingArgument; did you mean "learning_'
    with pytest.warns(UserWarning, match=expected) as caught:
        facts = gather(training_args=own)
    assert caught[0].filename == __file__
    assert facts.arguments == own


@pytest.mark.parametrize("name", ["warmup_ratio", "max_length", "num_generations"])
def test_known_and_former_arguments_are_accepted(name: str) -> None:
    assert gather(training_args={name: 1}).arguments == {name: 1}
