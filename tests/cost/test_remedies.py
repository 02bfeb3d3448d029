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
from dsconfig.cost.estimator import estimate_option
from dsconfig.cost.remedies import Change, cheapest_changes
from dsconfig.cost.tuning import tune
from dsconfig.facts import Facts
from dsconfig.facts.gathering import gather
from dsconfig.runtimes.base import (
    ADAPTERS_BY_PEFT,
    ARGUMENTS,
    BY_THE_MODEL,
    CONFIG,
    FUSED_LOSS,
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


def changes_of(name: str, config: dict[str, Any]) -> tuple[Runtime, Document, list[Change]]:
    runtime, document = runtime_of(name), read(config)
    here = facts(name, ARGS)
    effective = dsconfig.resolve(document, here, runtime=runtime).effective
    assert effective is not None
    return runtime, document, list(cheapest_changes(effective, here, runtime=runtime, count=50))


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


def apply_steps(
    steps: tuple[Instruction, ...], name: str, document: Document
) -> tuple[Document, Facts]:
    """Return the config and the facts after all steps are applied literally."""
    arguments, edits, recomputation = dict(ARGS), list[str](), dict[str, Any]()
    adapters: dict[str, Any] = {}
    for step in steps:
        if step.where == ARGUMENTS:
            arguments |= eval(f"dict({step.text})", {"dsengine": dsengine})
        elif step.where == CONFIG:
            key, _, value = step.text.partition(" = ")
            edits.append(f"{key}={value}")
        elif step.text.startswith("model.gradient_checkpointing_enable("):
            recomputation = CALLS[step.text]
        elif step.text in ADAPTERS:
            assert step.where == SCRIPT
            adapters |= ADAPTERS[step.text]
        elif step.text == FUSED_LOSS.text:
            adapters["loss"] = "fused-linear"
        else:
            assert step.where == SCRIPT
            value = int(step.text.rstrip(")").rpartition("=")[2])
            loader = step.text.startswith("DataLoader")
            arguments["per_device_train_batch_size" if loader else ACCUMULATION] = value
    changed = facts(name, arguments, **adapters)
    if recomputation:
        training = changed.training
        assert training is not None
        merged = {**training.arguments, **recomputation}
        changed = replace(changed, training=replace(training, arguments=merged))
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
    runtime, document, changes = changes_of(name, config)
    kinds = {part.split(" ")[0] for change in changes for part in change.parts}
    assert {"micro", "recompute", "stage", "LoRA:"} <= kinds
    for change in changes:
        steps = runtime.instructions(change.edits, config)
        assert steps, change.what
        after, here = apply_steps(steps, name, document)
        report = dsconfig.validate(after, here, runtime=runtime)
        assert not report.errors, (change.what, report.errors)
        resolution = dsconfig.resolve(after, here, runtime=runtime)
        assert resolution.ok, (change.what, resolution.diagnostics)
        again = dsconfig.estimate(resolution, here).options[0]
        assert again.device.peak_bytes == change.option.device.peak_bytes, change.what


def test_recomputation_is_written_for_the_target_program() -> None:
    texts, selective = {}, set()
    for name, config in CASES:
        runtime, _, changes = changes_of(name, config)
        (recompute,) = [change for change in changes if change.parts == ("recompute activations",)]
        texts[name] = [str(step) for step in runtime.instructions(recompute.edits, config)]
        if any(SELECTIVE_RECOMPUTATION in change.edits for change in changes):
            selective.add(name)
    by_the_script = ["model.gradient_checkpointing_enable() in the script"]
    assert texts == {
        "transformers": ["gradient_checkpointing=True in TrainingArguments"],
        "accelerate": by_the_script,
        "deepspeed": by_the_script,
        "dsengine": ['activation_checkpointing = {"partition_activations": false} in the config'],
    }
    assert selective == {"dsengine"}, "a policy function cannot be written in a file or flag"


def test_selective_recomputation_is_offered_only_to_dsengine_scripts() -> None:
    """Reporters write TrainingArguments to JSON or YAML, which cannot contain a function."""
    for name, _ in CASES:
        runtime = runtime_of(name)
        here = gather(**WORLD, seq_len=4096, global_batch=64)
        tried = {candidate.choice.recompute for candidate in tune(here, runtime=runtime)}
        assert (Recompute.SELECTIVE in tried) is (name == "dsengine")
        assert (SELECTIVE_RECOMPUTATION in runtime.set_elsewhere) is (name == "dsengine")


def test_qlora_is_offered_if_lora_does_not_fit() -> None:
    def last_parts(memory: str, **more: Any) -> list[str]:
        world = {"model": "llama-2-7b", "gpus": 2, "seq_len": 1024}
        here = gather(**world, device_memory=memory, **more)
        effective = dsconfig.resolve(
            {**FIXED, "train_micro_batch_size_per_gpu": 1}, here, runtime="deepspeed"
        ).effective
        assert effective is not None
        *_, change = cheapest_changes(effective, here, runtime="deepspeed")
        assert change.fits
        return [part.partition(":")[0] for part in change.parts]

    assert last_parts("24GB")[0] == "LoRA"
    assert last_parts("16GB")[0] == "QLoRA"
    assert last_parts("16GB", lora_rank=8)[0] == "QLoRA"


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
    effective = dsconfig.resolve(read(OPEN), here, runtime="transformers").effective
    assert effective is not None
    changes = cheapest_changes(effective, here, runtime="transformers")
    assert all(change.fits for change in changes)
    joint = {"micro batch 1", "recompute activations"}
    assert any(joint <= {*change.parts} or len(change.parts) == 2 for change in changes)


@contextmanager
def count_products() -> Iterator[list[int]]:
    """Count the matrix products that the block computes."""
    from torch.utils._python_dispatch import TorchDispatchMode

    count = [0]

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            count[0] += func.name() in ("aten::mm", "aten::addmm")
            return func(*args, **(kwargs or {}))

    with Counting():
        yield count


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
        with count_products() as count:
            transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
        by_pointer[pointer] = count[0]
        assert model.is_activation_checkpointing is (pointer is not None)
        if pointer:
            model = transformers.LlamaForCausalLM(tiny)
            exec(script[pointer].text, {"model": model, "dsengine": dsengine})
            assert model.is_activation_checkpointing
    # Each of two blocks has seven products; the last one is not recomputed.
    plain = by_pointer[None]
    assert by_pointer[RECOMPUTATION] - plain == 2 * 6


@pytest.mark.live
def test_deepspeed_accepts_every_remedy() -> None:
    """Its parser reads the estimated batch, stage, offload devices and buckets."""
    reader = pytest.importorskip("deepspeed.runtime.config")
    _, document, changes = changes_of("deepspeed", FIXED)
    runtime, kinds = runtime_of("deepspeed"), set[str]()
    for change in changes:
        steps = runtime.instructions(change.edits, FIXED)
        after, here = apply_steps(steps, "deepspeed", document)
        effective = dsconfig.resolve(after, here, runtime=runtime).effective
        assert effective is not None
        parsed = reader.DeepSpeedConfig(dict(after.value))
        zero = parsed.zero_config
        assert zero.stage == change.option.stage, change.what
        devices = {
            "offload_optimizer": change.option.offload_optimizer,
            "offload_param": change.option.offload_param,
        }
        for name, device in devices.items():
            block = getattr(zero, name)
            assert (str(block.device) if block else "none") == device, change.what
        batch = not_none(effective.batch)
        assert parsed.train_micro_batch_size_per_gpu == batch.micro_batch
        assert parsed.gradient_accumulation_steps == batch.accumulation
        assert zero.reduce_bucket_size == effective.zero.reduce_bucket_size
        kinds |= {part.split(" ")[0] for part in change.parts}
    assert {"micro", "recompute", "stage"} <= kinds
    smaller = runtime.instructions({"/zero_optimization/reduce_bucket_size": 50_000_000}, FIXED)
    after, _ = apply_steps(smaller, "deepspeed", document)
    assert reader.DeepSpeedConfig(dict(after.value)).zero_config.reduce_bucket_size == 50_000_000


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_trainer_passes_every_remedy_to_deepspeed(tmp_path: Any) -> None:
    """TrainingArguments fill in the batch and the precision without contradicting the file."""
    transformers = pytest.importorskip("transformers")
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    runtime, document, changes = changes_of("transformers", OPEN)
    for change in changes:
        steps = runtime.instructions(change.edits, OPEN)
        after, _ = apply_steps(steps, "transformers", document)
        training_args = dict(ARGS)
        for step in steps:
            if step.where == ARGUMENTS:
                training_args |= eval(f"dict({step.text})", {"dsengine": dsengine})
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), use_cpu=True, **training_args
        )
        filled = HfTrainerDeepSpeedConfig(after.value)
        filled.trainer_config_process(arguments)
        micro = training_args["per_device_train_batch_size"]
        assert filled.config["train_micro_batch_size_per_gpu"] == micro, change.what
        assert filled.config["gradient_accumulation_steps"] == training_args[ACCUMULATION], (
            change.what
        )
        assert filled.config["zero_optimization"]["stage"] == change.option.stage, change.what
        recomputes = any("recompute" in part for part in change.parts)
        assert arguments.gradient_checkpointing is recomputes, change.what


def test_remedies_are_in_the_json(tmp_path: Any, capsys: Any, monkeypatch: Any) -> None:
    from dsconfig.__main__ import main

    path = tmp_path / "ds.json"
    path.write_text(json.dumps(OPEN))
    flags = "--model llama-3-8b --gpus 4 --device a100-80gb --seq-len 8192 --micro-batch 1"
    command = ["dsconfig", "estimate", str(path), *flags.split(), "--output-format", "json"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code in (0, None)
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert data["runtime"] == "transformers" and data["inferred_from"]
    written = [remedy["steps"][0]["text"] for remedy in data["remedies"] if remedy["fits"]]
    assert written[0] == "gradient_checkpointing=True"
    assert "bf16=True in TrainingArguments" in captured.err, "fp32 is never assumed silently"


def test_remedy_without_offload_unsets_the_block() -> None:
    offload = {"offload_optimizer": {"device": "cpu"}}
    document = read({**FIXED, "zero_optimization": {"stage": 3, **offload}})
    here = gather(**WORLD, seq_len=512, host_memory="100GiB")
    effective = dsconfig.resolve(document, here, runtime="deepspeed").derive()
    assert effective is not None
    changes = cheapest_changes(effective, here, runtime="deepspeed", count=50)
    (without_offload,) = (change for change in changes if change.what == "optimizer on the GPU")
    assert without_offload.edits["/zero_optimization/offload_optimizer"] == {"device": "none"}
    (step, *_) = runtime_of("deepspeed").instructions(without_offload.edits, document.value)
    assert "offload_optimizer" in step.text


@pytest.mark.parametrize(
    ("name", "config", "stated"),
    [
        ("transformers", OPEN, {"training_args": {**ARGS, "gradient_checkpointing": True}}),
        ("transformers", OPEN, {"training_args": ARGS, "recompute": "full"}),
        ("deepspeed", FIXED, {"recompute": "full"}),
        ("dsengine", {**FIXED, "activation_checkpointing": {}}, {}),
        (
            "deepspeed",
            {
                **FIXED,
                "zero_optimization": {"stage": 1},
                "pipeline": {"stages": 2, "activation_checkpoint_interval": 1},
            },
            {},
        ),
    ],
    ids=["argument", "flag", "flag for a script", "block", "pipeline"],
)
def test_recomputation_that_is_on_is_not_offered(
    name: str, config: dict[str, Any], stated: dict[str, Any]
) -> None:
    here = gather(**WORLD, **{"seq_len": 2048, "precision": "bf16", **stated})
    effective = dsconfig.resolve(read(config), here, runtime=name).derive()
    assert effective is not None
    changes = cheapest_changes(effective, here, runtime=name, count=50)
    assert changes
    assert not [change.what for change in changes if "recompute" in change.what]


def test_stages_that_a_pipeline_does_not_support_are_not_offered() -> None:
    config = {**FIXED, "zero_optimization": {"stage": 1}, "pipeline": {"stages": 2}}
    here = gather(**WORLD, seq_len=2048, precision="bf16")
    effective = dsconfig.resolve(read(config), here, runtime="deepspeed").derive()
    assert effective is not None
    changes = cheapest_changes(effective, here, runtime="deepspeed", count=50)
    assert {change.option.stage for change in changes} == {1}


@pytest.mark.parametrize("name", ["deepspeed", "dsengine"])
@pytest.mark.parametrize("more", [{"base_weights": "4bit"}, {}], ids=["QLoRA", "LoRA"])
def test_layers_with_frozen_weights_are_not_split(name: str, more: dict[str, Any]) -> None:
    """AutoTP slices every linear layer: a packed weight and an adapter included."""
    here = gather(
        **{**WORLD, "model": "llama-2-70b", **more},
        lora_rank=16,
        seq_len=4096 if more else 2048,
        recompute="none",
        precision="bf16",
    )
    config = {**FIXED, "train_micro_batch_size_per_gpu": 1}
    effective = dsconfig.resolve(read(config), here, runtime=name).derive()
    assert effective is not None
    changes = cheapest_changes(effective, here, runtime=name, count=50)
    assert changes
    assert not [change.what for change in changes if "tensor parallel" in change.what]


LONG: dict[str, Any] = {
    "model": "qwen3-4b",
    "gpus": 8,
    "seq_len": 262144,
    "recompute": "full",
    "precision": "bf16",
}
OFFLOADED = {
    **FIXED,
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    },
}


def changes_for(config: dict[str, Any], name: str, here: Facts, count: int = 3) -> list[Change]:
    effective = dsconfig.resolve(read(config), here, runtime=name).derive()
    assert effective is not None
    return list(cheapest_changes(effective, here, runtime=name, count=count))


@pytest.mark.parametrize("name", ["accelerate", "transformers", "deepspeed", "dsengine"])
def test_degrees_are_combined_with_a_fused_loss(name: str) -> None:
    """Logits alone need more than the card, and so do the activations of the full sequence."""
    here = gather(**LONG, device="ascend-910b-64gb")
    found = changes_for(OFFLOADED, name, here)
    assert found and all(change.fits for change in found)
    parts = {part.rstrip(" 248") for part in found[0].parts}
    assert parts == {"sequence parallel", "fused loss (Liger)"}


def test_changes_that_come_closest_need_least() -> None:
    here = gather(**LONG, device_memory="6GiB")
    found = changes_for(OFFLOADED, "deepspeed", here)
    needed = [change.option.device.needed_bytes for change in found]
    assert len(found) == 3 and not any(change.fits for change in found)
    assert needed == sorted(needed)
    assert found[0].parts == ("sequence parallel 8", "fused loss (Liger)")
    # Offload of what is offloaded already and smaller buckets save little.
    effective = not_none(dsconfig.resolve(read(OFFLOADED), here, runtime="deepspeed").derive())
    plain = estimate_option(effective, here, runtime="deepspeed")
    assert needed[-1] < plain.device.needed_bytes / 5


def test_a_loss_that_is_set_is_not_replaced() -> None:
    for loss in ("fused", "plain"):
        found = changes_for(OFFLOADED, "deepspeed", gather(**LONG, device="h100", loss=loss), 50)
        assert not [change.what for change in found if "loss" in change.what]


def test_trainer_offers_the_loss_of_families_that_it_changes() -> None:
    def offered(model: str, name: str) -> bool:
        here = gather(**{**LONG, "model": model, "seq_len": 65536}, device="h100")
        return any("Liger" in change.what for change in changes_for(OFFLOADED, name, here, 50))

    assert offered("qwen3-4b", "transformers")
    assert not offered("glm-4.5-air", "transformers")
    assert offered("glm-4.5-air", "deepspeed")
