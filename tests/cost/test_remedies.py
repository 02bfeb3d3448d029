"""Every kind of remedy is written for the target program, and has the estimated effect."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

import dsconfig
import dsengine
from dsconfig.cost.activations import Recompute
from dsconfig.cost.remedies import Change, cheapest_changes
from dsconfig.cost.search import tune
from dsconfig.facts import Facts
from dsconfig.facts.gathering import gather
from dsconfig.runtimes.base import (
    ADAPTERS_BY_PEFT,
    ARGUMENTS,
    BY_THE_MODEL,
    CONFIG,
    QUANTIZED_BY_BITSANDBYTES,
    RECOMPUTATION,
    SCRIPT,
    SELECTIVE_RECOMPUTATION,
    SELECTIVELY_BY_THE_MODEL,
    Instruction,
    Runtime,
    runtime_of,
)
from dsconfig.source import Document, read
from dsconfig.source.override import with_overrides
from narrowing import not_none

OPEN = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "overlap_comm": True},
}
FIXED = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "overlap_comm": True},
}
CASES = (("transformers", OPEN), ("accelerate", OPEN), ("deepspeed", FIXED), ("dsengine", FIXED))
WORLD: dict[str, Any] = {"model": "llama-2-7b", "gpus": 8, "device": "a100-80gb"}
ARGS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "bf16": True}


def offered(name: str, config: dict[str, Any]) -> tuple[Runtime, Document, list[Change]]:
    runtime, document = runtime_of(name), read(config)
    here = facts(name, ARGS)
    settled = dsconfig.resolve(document, here, runtime=runtime).effective
    assert settled is not None
    return runtime, document, list(cheapest_changes(settled, here, runtime=runtime, count=50))


def facts(name: str, arguments: dict[str, Any], **more: Any) -> Facts:
    """Return the facts of the run, from TrainingArguments or flags as its program takes them."""
    own = {**WORLD, "seq_len": 4096, **more}
    if name == "transformers":
        return gather(**own, training_args=arguments)
    return gather(
        **own,
        micro_batch=arguments["per_device_train_batch_size"],
        accumulation=arguments["gradient_accumulation_steps"],
        precision="bf16",
    )


def followed(
    steps: tuple[Instruction, ...], name: str, document: Document
) -> tuple[Document, Facts]:
    """The world after a person has done what the steps say, to the letter."""
    arguments, edits, again = dict(ARGS), list[str](), dict[str, Any]()
    adapters: dict[str, Any] = {}
    for step in steps:
        if step.where == ARGUMENTS:
            arguments |= eval(f"dict({step.text})", {"dsengine": dsengine})
        elif step.where == CONFIG:
            key, _, value = step.text.partition(" = ")
            edits.append(f"{key}={value}")
        elif step.text.startswith("model.gradient_checkpointing_enable("):
            again = CALLS[step.text]
        elif step.text in ADAPTERS:
            assert step.where == SCRIPT
            adapters |= ADAPTERS[step.text]
        else:
            assert step.where == SCRIPT
            value = int(step.text.rstrip(")").rpartition("=")[2])
            loader = step.text.startswith("DataLoader")
            arguments["per_device_train_batch_size" if loader else ACCUMULATION] = value
    changed = facts(name, arguments, **adapters)
    if again:
        training = changed.training
        assert training is not None
        said = {**training.arguments, **again}
        changed = replace(changed, training=replace(training, arguments=said))
    return with_overrides(document, edits), changed


ACCUMULATION = "gradient_accumulation_steps"
ADAPTERS: dict[str, dict[str, Any]] = {
    ADAPTERS_BY_PEFT.text.format(16): {"lora_rank": 16},
    QUANTIZED_BY_BITSANDBYTES.text.format("4bit"): {"base_weights": "4bit"},
}
SELECTIVELY = SELECTIVELY_BY_THE_MODEL.text
CALLS: dict[str, dict[str, Any]] = {
    BY_THE_MODEL.text: {"gradient_checkpointing": True},
    SELECTIVELY: {"gradient_checkpointing": "selective"},
}
"""Calls in a script, with the equivalent argument of the next estimate (``--recompute``)."""


@pytest.mark.parametrize(("name", "config"), CASES, ids=[name for name, _ in CASES])
def test_applied_remedy_gives_the_promised_estimate(name: str, config: dict[str, Any]) -> None:
    runtime, document, changes = offered(name, config)
    kinds = {part.split(" ")[0] for change in changes for part in change.parts}
    assert {"micro", "recompute", "stage", "LoRA:"} <= kinds
    for change in changes:
        steps = runtime.instructions(change.edits, config)
        assert steps, change.what
        after, here = followed(steps, name, document)
        report = dsconfig.validate(after, here, runtime=runtime)
        assert not report.errors, (change.what, report.errors)
        resolution = dsconfig.resolve(after, here, runtime=runtime)
        assert resolution.ok, (change.what, resolution.diagnostics)
        again = dsconfig.estimate(resolution, here).options[0]
        assert again.device.peak_bytes == change.option.device.peak_bytes, change.what


def test_recomputation_is_written_for_the_target_program() -> None:
    spelled, selective = {}, set()
    for name, config in CASES:
        runtime, _, changes = offered(name, config)
        (alone,) = [each for each in changes if each.parts == ("recompute activations",)]
        spelled[name] = [str(step) for step in runtime.instructions(alone.edits, config)]
        if any(SELECTIVE_RECOMPUTATION in change.edits for change in changes):
            selective.add(name)
    by_the_script = ["model.gradient_checkpointing_enable() in the script"]
    assert spelled == {
        "transformers": ["gradient_checkpointing=True in TrainingArguments"],
        "accelerate": by_the_script,
        "deepspeed": by_the_script,
        "dsengine": ['activation_checkpointing = {"partition_activations": false} in the config'],
    }
    assert selective == {"dsengine"}, "the policy is a function, which no file or flag can name"


def test_selective_recomputation_is_offered_only_to_dsengine_scripts() -> None:
    """A function in TrainingArguments cannot be written to JSON or YAML, as reporters do."""
    for name, _ in CASES:
        runtime = runtime_of(name)
        here = gather(**WORLD, seq_len=4096, global_batch=64)
        chosen = {each.choice.recompute for each in tune(here, runtime=runtime)}
        assert (Recompute.SELECTIVE in chosen) is (name == "dsengine")
        assert (SELECTIVE_RECOMPUTATION in runtime.set_elsewhere) is (name == "dsengine")


def test_qlora_is_offered_if_lora_does_not_fit() -> None:
    def last(memory: str, **more: Any) -> list[str]:
        world = {"model": "llama-2-7b", "gpus": 2, "seq_len": 1024}
        here = gather(**world, device_memory=memory, **more)
        settled = dsconfig.resolve(
            {**FIXED, "train_micro_batch_size_per_gpu": 1}, here, runtime="deepspeed"
        ).effective
        assert settled is not None
        *_, change = cheapest_changes(settled, here, runtime="deepspeed")
        assert change.fits
        return [part.partition(":")[0] for part in change.parts]

    assert last("24GB")[0] == "LoRA"
    assert last("16GB")[0] == "QLoRA"
    assert last("16GB", lora_rank=8)[0] == "QLoRA"


def test_batch_in_file_is_changed_with_the_trainer_argument() -> None:
    edits = {"/train_micro_batch_size_per_gpu": 2}
    steps = runtime_of("transformers").instructions(edits, FIXED)
    assert [step.where for step in steps] == [ARGUMENTS, CONFIG]
    assert runtime_of("transformers").instructions(edits, OPEN) == steps[:1]


def test_remedy_omits_settings_already_in_the_file() -> None:
    edits = {"/zero_optimization/stage": 2, "/zero_optimization/reduce_bucket_size": 5}
    (step,) = runtime_of("deepspeed").instructions(edits, FIXED)
    assert step.text == "zero_optimization.reduce_bucket_size = 5"


def test_batch_with_recomputation_is_offered_if_needed() -> None:
    here = gather(**WORLD, seq_len=32768, training_args=ARGS)
    settled = dsconfig.resolve(read(OPEN), here, runtime="transformers").effective
    assert settled is not None
    changes = cheapest_changes(settled, here, runtime="transformers")
    assert all(change.fits for change in changes)
    joint = {"micro batch 1", "recompute activations"}
    assert any(joint <= {*change.parts} or len(change.parts) == 2 for change in changes)


@contextmanager
def products() -> Iterator[list[int]]:
    """How many matrix products are computed while the block runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    counted = [0]

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            counted[0] += func.name() in ("aten::mm", "aten::addmm")
            return func(*args, **(kwargs or {}))

    with Counting():
        yield counted


@pytest.mark.live
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_trainer_and_model_recompute_as_the_remedy_states(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    tiny = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
    )
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
    by_pointer: dict[str | None, int] = {}
    trainer, script = (
        runtime_of("transformers").set_elsewhere,
        runtime_of("deepspeed").set_elsewhere,
    )
    for pointer in (None, RECOMPUTATION):
        text = trainer[pointer].text if pointer else ""
        model = transformers.LlamaForCausalLM(tiny)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            **eval(f"dict({text})", {"dsengine": dsengine}),
        )
        with products() as counted:
            transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
        by_pointer[pointer] = counted[0]
        assert model.is_activation_checkpointing is (pointer is not None)
        if pointer:
            model = transformers.LlamaForCausalLM(tiny)
            exec(script[pointer].text, {"model": model, "dsengine": dsengine})
            assert model.is_activation_checkpointing
    # Seven products in each of two blocks, the last of which is not needed again.
    plain = by_pointer[None]
    assert by_pointer[RECOMPUTATION] - plain == 2 * 6


@pytest.mark.live
def test_deepspeed_accepts_every_remedy() -> None:
    """The batch, the stage, the places and the buckets that the price was made of."""
    reader = pytest.importorskip("deepspeed.runtime.config")
    _, document, changes = offered("deepspeed", FIXED)
    runtime, kinds = runtime_of("deepspeed"), set[str]()
    for change in changes:
        steps = runtime.instructions(change.edits, FIXED)
        after, here = followed(steps, "deepspeed", document)
        settled = dsconfig.resolve(after, here, runtime=runtime).effective
        assert settled is not None
        read_by = reader.DeepSpeedConfig(dict(after.value))
        zero = read_by.zero_config
        assert zero.stage == change.option.stage, change.what
        places = {
            "offload_optimizer": change.option.offload_optimizer,
            "offload_param": change.option.offload_param,
        }
        for name, place in places.items():
            block = getattr(zero, name)
            assert (str(block.device) if block else "none") == place, change.what
        batch = not_none(settled.batch)
        assert read_by.train_micro_batch_size_per_gpu == batch.micro_batch
        assert read_by.gradient_accumulation_steps == batch.accumulation
        assert zero.reduce_bucket_size == settled.zero.reduce_bucket_size
        kinds |= {part.split(" ")[0] for part in change.parts}
    assert {"micro", "recompute", "stage"} <= kinds
    smaller = runtime.instructions({"/zero_optimization/reduce_bucket_size": 50_000_000}, FIXED)
    after, _ = followed(smaller, "deepspeed", document)
    assert reader.DeepSpeedConfig(dict(after.value)).zero_config.reduce_bucket_size == 50_000_000


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_trainer_passes_every_remedy_to_deepspeed(tmp_path: Any) -> None:
    """Its own arguments fill the file: the batch, the precision, and no contradiction."""
    transformers = pytest.importorskip("transformers")
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    runtime, document, changes = offered("transformers", OPEN)
    for change in changes:
        steps = runtime.instructions(change.edits, OPEN)
        after, _ = followed(steps, "transformers", document)
        said = dict(ARGS)
        for step in steps:
            if step.where == ARGUMENTS:
                said |= eval(f"dict({step.text})", {"dsengine": dsengine})
        arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **said)
        made = HfTrainerDeepSpeedConfig(after.value)
        made.trainer_config_process(arguments)
        micro = said["per_device_train_batch_size"]
        assert made.config["train_micro_batch_size_per_gpu"] == micro, change.what
        assert made.config["gradient_accumulation_steps"] == said[ACCUMULATION], change.what
        assert made.config["zero_optimization"]["stage"] == change.option.stage, change.what
        again = any("recompute" in part for part in change.parts)
        assert arguments.gradient_checkpointing is again, change.what


def test_remedies_are_in_the_json(tmp_path: Any, capsys: Any, monkeypatch: Any) -> None:
    from dsconfig.__main__ import main

    path = tmp_path / "ds.json"
    path.write_text(json.dumps(OPEN))
    flags = "--model llama-3-8b --gpus 4 --device a100-80gb --seq-len 8192 --micro-batch 1"
    command = ["dsconfig", "estimate", str(path), *flags.split(), "--output-format", "json"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (0, None)
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert data["runtime"] == "transformers" and data["inferred_from"]
    written = [each["steps"][0]["text"] for each in data["remedies"] if each["fits"]]
    assert written[0] == "gradient_checkpointing=True"
    assert "bf16=True in TrainingArguments" in captured.err, "fp32 is never assumed in silence"


def test_remedy_without_offload_unsets_the_block() -> None:
    moved = {"offload_optimizer": {"device": "cpu"}}
    document = read({**FIXED, "zero_optimization": {"stage": 3, **moved}})
    here = gather(**WORLD, seq_len=512, host_memory="100GiB")
    settled = dsconfig.resolve(document, here, runtime="deepspeed").effective
    assert settled is not None
    changes = cheapest_changes(settled, here, runtime="deepspeed", count=50)
    (back,) = (each for each in changes if each.what == "stage 3, all on the GPU")
    assert back.edits["/zero_optimization/offload_optimizer"] == {"device": "none"}
    (step, *_) = runtime_of("deepspeed").instructions(back.edits, document.value)
    assert "offload_optimizer" in step.text
