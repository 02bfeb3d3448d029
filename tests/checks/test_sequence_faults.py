"""Rules for sequence and tensor parallelism: which degrees, stages, models and releases."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig.facts import gather, hf_attributes
from dsconfig.runtimes.capabilities import AUTOTP_STYLES, unconverted_styles

MICRO: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
CLIPPED: dict[str, Any] = {**MICRO, "gradient_clipping": 1.0}


def codes(config: dict[str, Any], version: str = "0.19.8", **facts: Any) -> dict[str, str]:
    here = gather(gpus=8, **facts)
    report = dsconfig.validate(config, here, runtime="deepspeed", version=version)
    return {each.code: f"{each.effect}: {each.message}" for each in report.diagnostics}


@pytest.mark.parametrize(("stage", "reported"), [(0, False), (1, True), (2, True), (3, False)])
def test_norm_is_too_large_at_stages_1_and_2(stage: int, reported: bool) -> None:
    found = codes({**CLIPPED, "zero_optimization": {"stage": stage}}, sequence_parallel=4)
    assert ("DSC871" in found) == reported
    if reported:
        assert "4 times too large" in found["DSC871"] and "clipped at 0.25" in found["DSC871"]


def test_norm_depends_on_the_release_and_on_clipping() -> None:
    sharded = {**CLIPPED, "zero_optimization": {"stage": 2}}
    assert "DSC871" not in codes(sharded, "0.14.4", sequence_parallel=4)
    assert "DSC871" not in codes(sharded)
    unclipped = {**sharded, "gradient_clipping": 0.0}
    assert "DSC871" not in codes(unclipped, sequence_parallel=4)
    key_alone = {**sharded, "sequence_parallel_size": 4}
    assert codes(key_alone)["DSC871"].startswith("note"), "the script may pass no mpu"


@pytest.mark.parametrize(
    ("model", "kernel", "effect"),
    [
        ("gemma-2-9b", "sdpa", "altered"),
        ("gemma-2-9b", None, "note"),
        ("gemma-2-9b", "flash_attention_2", None),
        ("llama-3-8b", "sdpa", None),
    ],
)
def test_windows_under_ulysses(model: str, kernel: str | None, effect: str | None) -> None:
    arguments = {"attn_implementation": kernel} if kernel else None
    found = codes(MICRO, model=model, sequence_parallel=2, training_args=arguments)
    assert (found.get("DSC872", "").partition(":")[0] or None) == effect
    assert "DSC872" not in codes(MICRO, model=model, training_args=arguments)


def test_recurrent_layers_under_ulysses() -> None:
    found = codes(MICRO, model="qwen3-next-80b-a3b", sequence_parallel=2)
    assert "36 recurrent layers" in found["DSC873"]
    assert "DSC873" not in codes(MICRO, model="llama-3-8b", sequence_parallel=2)


@pytest.mark.parametrize(
    ("model", "refused"),
    [("mixtral-8x7b", True), ("llama-3-8b", False), ("qwen2.5-32b", False)],
)
def test_plans_that_autotp_refuses(model: str, refused: bool) -> None:
    divided = {**MICRO, "tensor_parallel": {"autotp_size": 2}}
    assert ("DSC874" in codes(divided, model=model)) == refused
    assert "DSC874" not in codes(divided, "0.19.5", model=model)
    own: dict[str, Any] = {"autotp_size": 2, "partition_config": {"layer_specs": []}}
    assert "DSC874" not in codes({**MICRO, "tensor_parallel": own}, model=model)


def test_model_that_autotp_does_not_support() -> None:
    divided = {**MICRO, "tensor_parallel": {"autotp_size": 2}}
    for version, expected in (("0.16.3", False), ("0.16.4", True), ("0.19.8", True)):
        assert ("DSC876" in codes(divided, version, model="gpt2")) == expected
    assert "DSC874" not in codes(divided, model="gpt2")
    assert "DSC876" not in codes(divided, model="mixtral-8x7b")


def test_refused_families_are_those_with_other_styles() -> None:
    table = hf_attributes.recorded_types()
    planned = [family for family in table if hf_attributes.tensor_plan(family)]
    refused = [family for family in planned if unconverted_styles(family)]
    assert (len(planned), len(refused)) == (144, 79), "as in the page of DSC874"
    for family in planned:
        styles = set(hf_attributes.tensor_plan(family).values())
        assert (family in refused) == bool(styles - AUTOTP_STYLES)


def test_batch_counts_tensor_ranks() -> None:
    divided = {"train_batch_size": 64, "tensor_parallel": {"autotp_size": 4}}
    assert "trains on 16 samples" in codes(divided, model="llama-3-8b")["DSC875"]
    assert "DSC875" not in codes({**MICRO, "tensor_parallel": {"autotp_size": 4}})
    assert "DSC875" not in codes({"train_batch_size": 64, "tensor_parallel": {"autotp_size": 1}})


@pytest.mark.parametrize(("length", "reported"), [(1024, False), (8192, True)])
def test_window_matters_for_longer_sequences_only(
    length: int, reported: bool, tmp_path: Path
) -> None:
    shape = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 96}
    model = {"model_type": "mistral", "intermediate_size": 128, "sliding_window": 4096, **shape}
    (tmp_path / "config.json").write_text(json.dumps(model))
    here: dict[str, Any] = {"sequence_parallel": 2, "model": tmp_path / "config.json"}
    assert ("DSC872" in codes(MICRO, **here, seq_len=length)) == reported
