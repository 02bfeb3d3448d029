"""``tune`` searches parallel degrees that the target program executes, if the model needs them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import command_line
import dsconfig
from dsconfig.cost import divisions, tuning
from dsconfig.cost.limits import limits
from dsconfig.cost.remedies import cheapest_changes
from dsconfig.cost.search_space import Candidate
from dsconfig.facts import Facts, gather
from dsconfig.mesh import UNDIVIDED, Degrees
from dsconfig.report.sizes import GIB
from dsconfig.runtimes import capabilities
from dsconfig.runtimes.base import NAMES, every_runtime, runtime_of
from dsconfig.schema.version import Version
from narrowing import not_none

LONG: dict[str, Any] = {
    "model": "qwen2.5-32b",
    "gpus": 64,
    "device": "h100",
    "seq_len": 131_072,
}


@cache
def ranked(runtime: str) -> tuning.Ranking:
    return tuning.ranking(gather(**LONG), runtime=runtime)


def first(runtime: str) -> Candidate:
    return ranked(runtime).candidates[0]


@pytest.mark.parametrize("runtime", NAMES)
def test_long_sequences_are_divided_where_nothing_fits_undivided(runtime: str) -> None:
    best = first(runtime)
    assert (best.degrees, best.choice.stage) == (Degrees(sequence=8), 3)
    assert not best.reason and best.verdict.has_headroom
    headroom = best.option.fits[0].headroom_bytes / GIB
    assert headroom == pytest.approx(25.4 if runtime == "dsengine" else 21.2, abs=0.1)


def test_model_that_fits_is_not_divided() -> None:
    facts = gather(model="llama-3-8b", gpus=8, device="h100", seq_len=4096)
    found = tuning.ranking(facts, runtime="deepspeed")
    assert {each.degrees for each in found.candidates} == {UNDIVIDED}
    assert {(each.axis, each.degree) for each in found.rejected} == {
        (axis, None) for axis in capabilities.AXES
    }
    assert found.rejected[0].reason == "not needed: fits with data parallelism alone"


def test_degree_of_a_flag_is_kept() -> None:
    facts = gather(**LONG, sequence_parallel=4)
    assert {each.degrees for each in tuning.tune(facts, runtime="deepspeed")} == {
        Degrees(sequence=4)
    }


def test_flag_of_one_keeps_samples_whole() -> None:
    (best, *_) = tuning.tune(gather(**LONG, sequence_parallel=1), runtime="deepspeed")
    assert best.degrees == UNDIVIDED and "exceeds" in best.reason


@pytest.mark.parametrize("runtime", NAMES)
def test_every_other_degree_has_a_reason(runtime: str) -> None:
    found = ranked(runtime)
    others = [each for each in found.candidates if each.degrees != found.candidates[0].degrees]
    assert UNDIVIDED in {each.degrees for each in others}
    assert all(each.reason for each in (*others, *found.rejected))
    covered = {axis for each in others for axis in capabilities.AXES if each.degrees != UNDIVIDED}
    assert covered | {each.axis for each in found.rejected} == set(capabilities.AXES)
    unsupported = {each.axis for each in found.rejected if "not executed by" in each.reason}
    program = runtime_of(runtime)
    refused = {axis for axis in capabilities.AXES if not capabilities.executes(program, axis)}
    assert unsupported == refused


def test_candidate_contains_the_settings_of_its_program() -> None:
    assert first("dsengine").config["sequence_parallel_size"] == 8
    for runtime in ("deepspeed", "transformers", "accelerate"):
        assert "sequence_parallel_size" not in first(runtime).config
    done = command_line.run(
        *("tune", "--model", "qwen2.5-32b", "--gpus", "64", "--device", "h100"),
        *("--seq-len", "131072", "--runtime", "transformers"),
    )
    assert done.returncode == 0
    shown = " ".join(done.stdout.split())
    assert "parallelism_config=ParallelismConfig(sp_size=8, dp_shard_size=8)" in shown
    assert "pipeline parallel: not executed by transformers" in shown


def test_json_lists_degrees_and_rejections() -> None:
    done = command_line.run(
        *("tune", "--model", "qwen2.5-7b", "--gpus", "4", "--device", "h100"),
        *("--seq-len", "131072", "--runtime", "dsengine", "--output-format", "json"),
    )
    data = json.loads(done.stdout)
    assert data["candidates"][0]["degrees"]["sequence"] == 4
    assert {
        "axis": "pipeline",
        "degree": None,
        "reason": "there is one node",
    } in data["rejected_degrees"]


def obstacle(axis: str, degree: int, **more: Any) -> str:
    facts: Facts = gather(**{**LONG, **more})
    return divisions.why_not(axis, divisions.with_degree(facts, axis, degree))


def test_obstacles_name_the_nearest_degree() -> None:
    assert obstacle("sequence", 16) == "40 attention heads are not divisible by it; use 8"
    assert obstacle("sequence", 3, gpus=48) == "131072 tokens are not divisible by it; use 2"
    assert obstacle("tensor", 16) == "8 key/value heads are not divisible by it; use 8"
    assert obstacle("pipeline", 128, gpus=128).startswith("64 layers cannot fill it; use 64")
    assert obstacle("sequence", 5).startswith("64 ranks are not divisible by it; use 4")
    assert obstacle("sequence", 4, global_batch=8) == (
        "the global batch of 8 is not a multiple of 16 data-parallel ranks; use 8"
    )
    assert obstacle("sequence", 8, global_batch=12) == (
        "the global batch of 12 is not a multiple of 8 data-parallel ranks"
    ), "no degree is possible"
    assert obstacle("sequence", 4, tensor_parallel=2) == ""
    assert obstacle("sequence", 8, tensor_parallel=8).startswith("5 attention heads")
    assert obstacle("expert", 3, gpus=48, model="qwen3-30b-a3b").endswith("by it; use 2")
    assert obstacle("expert", 8, model="qwen3-30b-a3b") == ""


def test_degrees_divide_the_ranks(tmp_path: Path) -> None:
    shape = {"hidden_size": 384, "num_attention_heads": 12, "num_key_value_heads": 3}
    sizes = {"num_hidden_layers": 12, "intermediate_size": 1024, "vocab_size": 1000}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **shape, **sizes}))
    facts = gather(model=path, gpus=6, nodes=1, seq_len=12_288)
    assert divisions.degrees_of("tensor", facts) == divisions.degrees_of("sequence", facts)
    assert divisions.degrees_of("tensor", facts) == [2, 3, 6]
    program = runtime_of("deepspeed")
    possible = [each.degrees for each in divisions.possible(facts, program)]
    assert possible == [Degrees(sequence=3), Degrees(sequence=6), Degrees(tensor=3)]
    equal = [each.degrees for each in divisions.possible(facts, runtime_of("dsengine"))]
    assert equal == possible[:2], "an MLP of 1024 has no three equal parts"
    assert divisions.degrees_of("pipeline", gather(gpus=12, nodes=3)) == [2, 3]


def test_models_are_refused_from_a_release_on() -> None:
    def why(axis: str, model: str, release: str) -> str:
        program = runtime_of("deepspeed", Version.parse(release))
        return divisions.why_none(axis, gather(model=model, gpus=8), program)

    assert "AutoTP refuses mixtral" in why("tensor", "mixtral-8x7b", "0.19.6")
    assert not why("tensor", "mixtral-8x7b", "0.19.5")
    assert "AutoTP refuses gpt2" in why("tensor", "gpt2", "0.16.4")
    assert why("expert", "mixtral-8x7b", "0.19.1").endswith("requires DeepSpeed 0.19.2 or later")
    assert not why("expert", "mixtral-8x7b", "0.19.2")
    late = "minimax_m3_vl_text"
    programs = [runtime_of("deepspeed", Version(0, 19, patch)) for patch in (7, 8)]
    found = [bool(capabilities.refused_experts(program, late)) for program in programs]
    assert found == [True, False]
    engine = runtime_of("dsengine")
    assert not capabilities.refused_experts(engine, "mixtral")
    assert "has no expert-parallel plan" in capabilities.refused_experts(engine, "llama")
    mixture = gather(model="mixtral-8x7b", gpus=8)
    tried = [each.degrees for each in divisions.possible(mixture, engine)]
    assert {Degrees(expert=degree) for degree in (2, 4, 8)} <= {*tried}


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"gpus": 1}, "there is one rank"),
        ({"gpus": 8, "sequence_parallel": 2}, "not searched: sequence parallel 2 is set"),
        ({"gpus": 8, "tensor_parallel": 1}, "not searched: tensor_parallel= is set to 1"),
    ],
)
def test_reason_without_a_search(facts: dict[str, Any], reason: str) -> None:
    known = gather(model="qwen2.5-0.5b", device="h100", seq_len=2048, **{"gpus": 8, **facts})
    found = tuning.ranking(known, runtime="deepspeed")
    assert [each.reason for each in found.rejected if each.axis == "sequence"] == [reason]


def test_table_covers_every_program_and_axis() -> None:
    for program in every_runtime():
        rows = capabilities.TABLE[program.name]
        assert set(rows) == set(capabilities.AXES)
        for axis, row in rows.items():
            assert bool(row.reason) != bool(row.keys or row.step), (program.name, axis)
            if row.step is not None:
                assert program.set_elsewhere[capabilities.POINTERS[axis]] == row.step


def test_release_and_stage_limit_a_degree() -> None:
    old = runtime_of("transformers", Version(0, 17, 6))
    assert capabilities.support(old, "sequence").reason == "it requires DeepSpeed 0.18.2 or later"
    tensor = Degrees(tensor=2)
    at = [runtime_of("deepspeed", Version(0, 19, patch)) for patch in (3, 4)]
    assert [capabilities.stages_under(each, tensor) for each in at] == [(0, 1, 2), (0, 1, 2, 3)]
    assert capabilities.stages_under(at[1], Degrees(pipeline=2)) == (0, 1)
    assert capabilities.stages_under(at[1], Degrees(pipeline=2, tensor=2)) == (0, 1)


def test_written_keys_are_accepted_by_their_program() -> None:
    for program in every_runtime():
        for axis in capabilities.AXES:
            degrees = Degrees(**{axis: 2})
            settings = capabilities.settings_of(program, degrees, 8)
            for pointer in capabilities.keys_in(settings):
                path = pointer.strip("/").replace("/", ".")
                assert dsconfig.explain(path), path


CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}


def test_remedy_divides_the_sequence_and_keeps_the_global_batch() -> None:
    facts = gather(**LONG)
    effective = dsconfig.resolve(CONFIG, facts, runtime="dsengine").effective
    best, *_ = cheapest_changes(not_none(effective), facts, runtime="dsengine")
    assert best.fits and best.parts == ("sequence parallel 8", "recompute activations", "stage 3")
    assert best.edits["/sequence_parallel_size"] == 8
    assert best.edits["/gradient_accumulation_steps"] == 16


def test_remedies_do_not_divide_what_fits_otherwise() -> None:
    facts = gather(model="llama-3-8b", gpus=4, device="a100-80gb", seq_len=8192)
    effective = dsconfig.resolve(
        {**CONFIG, "zero_optimization": {"stage": 3}}, facts, runtime="deepspeed"
    ).effective
    changes = cheapest_changes(not_none(effective), facts, runtime="deepspeed")
    assert changes[0].what == "recompute activations"
    assert not any("parallel" in change.what for change in changes)


def test_limits_use_the_degrees() -> None:
    found = {limit.question: limit for limit in limits(gather(**LONG), runtime="deepspeed")}
    assert not_none(found["longest sequence (tokens)"].value) > 200_000
    assert found["longest sequence (tokens)"].how.startswith("sequence parallel 8, stage 3")
    assert found["fewest GPUs"].value == 8


def test_auto_sequence_parallel_size_is_the_choice_of_the_search() -> None:
    config = {**CONFIG, "sequence_parallel_size": "auto", "zero_optimization": {"stage": "auto"}}
    config["activation_checkpointing"] = {}
    resolution = dsconfig.resolve(config, gather(**LONG), runtime="dsengine")
    assert resolution.ok and resolution.config["sequence_parallel_size"] == 8
    assert resolution.config["zero_optimization"]["stage"] == 3
    small = gather(model="llama-3-8b", gpus=8, device="h100", seq_len=2048)
    assert dsconfig.resolve(config, small).config["sequence_parallel_size"] == 1
    assert dsconfig.resolve(config, gather(gpus=8)).config["sequence_parallel_size"] == 1
    flag = gather(**LONG, sequence_parallel=4)
    assert dsconfig.resolve(config, flag).config["sequence_parallel_size"] == 4


def test_degree_that_the_program_does_not_execute_is_an_error() -> None:
    known: dict[str, Any] = {"gpus": 8, "device": "a100-80gb", "seq_len": 2048}
    facts = gather(**known, model="llama-2-7b", pipeline_parallel=2)
    with pytest.raises(ValueError, match="pipeline_parallel=2 is not executed by transform"):
        dsconfig.tune(facts, runtime="transformers")
    facts = gather(**known, model="mixtral-8x7b", expert_parallel=2, tensor_parallel=2)
    with pytest.raises(ValueError, match="it does not combine it with tensor_parallel="):
        dsconfig.tune(facts, runtime="dsengine")
