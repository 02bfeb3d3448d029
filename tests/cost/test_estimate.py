"""Properties of every estimate."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import dsconfig
from dsconfig.cost.calibration import calibrate, calibrated
from dsconfig.cost.choices import (
    USUAL,
    Choice,
    config_of,
    usual_config,
    with_choice,
    with_micro_batch,
    with_recomputation,
)
from dsconfig.cost.estimate import Phase, TierMemory
from dsconfig.cost.estimator import estimate, estimate_option
from dsconfig.cost.fit import verdict_on
from dsconfig.cost.hardware import pinned, workspace_bytes
from dsconfig.cost.limits import limits
from dsconfig.cost.remedies import cheapest_changes
from dsconfig.cost.search_space import programs
from dsconfig.cost.tuning import tune
from dsconfig.cost.usual import table
from dsconfig.facts import Facts, TrainingFacts, catalogue, hf_config
from dsconfig.facts.gathering import gather
from dsconfig.runtimes.base import LOSS, SELECTIVE_RECOMPUTATION, runtime_of
from dsconfig.runtimes.effective import Effective, Tier, Zero
from dsconfig.schema import Key, find
from dsconfig.tiles import LONGEST_DENSE_MASK

RUNTIMES = ("dsengine", "deepspeed")
LOADED_IN_FP32 = {"dtype": "float32"}


def facts(**changes: Any) -> Facts:
    defaults: dict[str, Any] = {
        "gpus": 8,
        "model": "llama-2-7b",
        "device": "a100-80gb",
        "micro_batch": 1,
        "seq_len": 2048,
    }
    return gather(**{**defaults, **changes})


def peak(config: Effective, facts: Facts, *, runtime: str) -> int:
    return estimate_option(config, facts, runtime=runtime).device.peak_bytes


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("choice", USUAL, ids=lambda choice: choice.label)
def test_components_add_up_to_each_phase_and_the_peak(runtime: str, choice: Choice) -> None:
    device = estimate_option(usual_config(facts(), choice), facts(), runtime=runtime).device
    for phase, total in device.phase_bytes.items():
        summed = sum(part.bytes for part in device.components if phase in part.phases)
        assert summed == total
    assert device.peak_bytes == max(device.phase_bytes.values())
    assert device.peak_bytes == device.phase_bytes[device.peak_phase]
    assert device.peak_bytes < device.reserved_bytes < device.visible_bytes


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_components_name_existing_keys(runtime: str) -> None:
    for choice in USUAL:
        for part in estimate_option(
            usual_config(facts(), choice), facts(), runtime=runtime
        ).device.components:
            assert part.formula
            assert not part.pointer or part.pointer.startswith("/")


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("choice", USUAL, ids=lambda choice: choice.label)
def test_memory_is_monotonic_in_ranks_and_tokens(runtime: str, choice: Choice) -> None:
    config = usual_config(facts(), choice)
    few_ranks, many_ranks = (peak(config, facts(gpus=size), runtime=runtime) for size in (8, 64))
    assert many_ranks <= few_ranks
    bigger = with_micro_batch(config, 2)
    assert peak(bigger, facts(), runtime=runtime) >= peak(config, facts(), runtime=runtime)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_recomputation_saves_activations(runtime: str) -> None:
    config = usual_config(facts(), Choice(stage=3))
    without = peak(config, facts(), runtime=runtime)
    arguments = {"gradient_checkpointing": True}
    training = facts().training
    assert training is not None
    recomputed = replace(facts(), training=replace(training, arguments=arguments))
    assert peak(config, recomputed, runtime=runtime) < without


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_frozen_parameters_have_no_states(runtime: str) -> None:
    model = facts().model
    assert model is not None
    adapters = replace(model, trainable=model.parameters // 1000, root=None)
    frozen = replace(facts(), model=adapters)
    config = usual_config(facts(), Choice(stage=2))
    sizes = {
        part.name: part.bytes
        for part in estimate_option(config, frozen, runtime=runtime).device.components
    }
    assert sizes["optimizer state"] <= 8 * adapters.trainable / 8 + 8 * 400


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("choice", USUAL, ids=lambda choice: choice.label)
def test_more_accumulation_needs_no_more_memory(choice: Choice, ranks: int) -> None:
    """The sums exist from the second pass on; further passes add nothing."""
    here = facts(gpus=ranks, model="gpt2", device="h100")
    two, four = (
        estimate_option(with_micro_batch(usual_config(here, choice), 1, passes), here).device
        for passes in (2, 4)
    )
    assert two.phase_bytes == four.phase_bytes
    assert two.end_bytes == four.end_bytes


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_memory_outside_the_pool_matches_measurements(runtime: str) -> None:
    """Compare with a context of 0.47 to 0.92 GiB, and 1 to 2 GiB of NCCL on several ranks
    (ml-engineering, training/performance and debug/pytorch)."""
    outside: dict[int, int] = {}
    for ranks in (1, 2, 8):
        here = facts(gpus=ranks, model="gpt2")
        device = estimate_option(usual_config(here, Choice(stage=2)), here, runtime=runtime).device
        outside[ranks] = device.visible_bytes - device.reserved_bytes
    assert 0.47 * 2**30 <= outside[1] <= 0.92 * 2**30
    assert 2**30 <= outside[2] - outside[1] <= 2 * 2**30
    assert outside[8] == outside[2]


def test_only_a_parameter_count_gives_a_range() -> None:
    counted = table(gather(gpus=8, params="7e9")).options[0].device
    assert counted.low_bytes is not None and counted.high_bytes is not None
    assert counted.low_bytes < counted.peak_bytes < counted.high_bytes
    assert table(facts()).options[0].device.low_bytes is None


def test_offloaded_states_take_18_bytes_per_parameter() -> None:
    config = usual_config(facts(), Choice(stage=2, optimizer=Tier.HOST))
    model = facts().model
    assert model is not None
    option = estimate_option(config, facts(), runtime="deepspeed")
    assert option.host.bytes == pytest.approx(18 * model.parameters, rel=1e-6)
    assert option.host.pinned_bytes > 0


@pytest.mark.parametrize(
    ("requested", "allocated"), [(0, 0), (1, 1), (5, 8), (2**30, 2**30), (5_100_000_000, 2**33)]
)
def test_pinned_memory_is_rounded_to_powers_of_two(requested: int, allocated: int) -> None:
    assert pinned(requested) == allocated


def test_calibration_matches_the_measurement_and_reports_the_error() -> None:
    estimates = estimate(usual_config(facts(), Choice(stage=3)), facts())
    visible = estimates.options[0].device.visible_bytes
    calibration = calibrate(estimates.options[0], visible * 11 // 10)
    assert calibration.error == pytest.approx(-1 / 11, rel=1e-6)
    after = calibrated(estimates, calibration).options[0].device.visible_bytes
    assert after == pytest.approx(visible * 1.1, rel=1e-6)


def test_measurement_of_different_run_is_rejected() -> None:
    option = estimate_option(usual_config(facts(), Choice(stage=3)), facts())
    message = f"0.25 GiB measured, {option.device.visible_bytes / 2**30:.2f} GiB estimated"
    with pytest.raises(ValueError, match=message):
        calibrate(option, 2**28)


def test_calibration_matches_if_the_peak_phase_changes() -> None:
    estimates = estimate(usual_config(facts(), Choice(stage=2)), facts())
    device = estimates.options[0].device
    step = device.phase_bytes[Phase.STEP]
    assert device.peak_phase == "backward" and step < device.peak_bytes
    calibration = calibrate(estimates.options[0], step - 2**30, what="allocated")
    after = calibrated(estimates, calibration).options[0].device
    assert after.peak_bytes == step - 2**30


def test_measurement_below_the_states_is_rejected() -> None:
    estimates = estimate(usual_config(facts(), Choice(stage=2)), facts())
    with pytest.raises(ValueError, match="different run"):
        calibrate(estimates.options[0], 2**30)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_catalogue_device_can_be_estimated(runtime: str) -> None:
    for gpu in catalogue.gpus():
        here = facts(device=gpu["name"], model="gpt2")
        option = estimate_option(usual_config(here, Choice(stage=2)), here, runtime=runtime)
        assert option.fits[0].memory_bytes == gpu["memory_bytes_usable"], gpu["name"]


def test_remedies_fit_and_are_sorted_by_slowdown() -> None:
    tight = facts(device="v100-32gb", precision="fp16")
    config = usual_config(tight, Choice(stage=1))
    assert not estimate_option(config, tight, runtime="deepspeed").fits[0].fits
    changes = cheapest_changes(config, tight, runtime="deepspeed")
    *full, adapters = changes
    assert len(full) == 3 and adapters.parts[0].startswith("LoRA")
    assert all(change.fits for change in changes)
    slowdowns = [change.slowdown for change in full]
    assert slowdowns == sorted(slowdowns)


def test_pairs_are_offered_only_if_better_than_single_changes() -> None:
    here = facts(model="gpt2", host_memory="2GB")  # eight fp32 copies are 4 GB; one module is not
    changes = cheapest_changes(usual_config(here, Choice(stage=2)), here)
    assert changes[0].what == "stage 3" and changes[0].fits
    assert all("stage 3" not in change.parts for change in changes[1:])


@pytest.mark.parametrize("stage", [2, 3])
def test_applied_change_needs_the_estimated_memory(stage: int) -> None:
    memory = {2: "8GB", 3: "5GB"}[stage]
    here = facts(model="llama-3.2-1b", device_memory=memory, device=None, micro_batch=4)
    config = with_micro_batch(usual_config(here, Choice(stage=stage)), 4, 1)
    changes = cheapest_changes(config, here, count=50)
    assert changes
    for change in changes:
        config_file = config_of(config)
        config_file.pop("train_batch_size", None)
        changed = change.facts  # with what is set outside the config
        for pointer, value in change.edits.items():
            if pointer in (LOSS, SELECTIVE_RECOMPUTATION) or pointer.startswith("/degrees/"):
                continue
            *blocks, name = pointer.split("/")[1:]
            parent = config_file
            for block in blocks:
                parent = parent.setdefault(block, {})
            parent[name] = value
        option = dsconfig.estimate(dsconfig.resolve(config_file, changed), changed).options[0]
        assert option.device.peak_bytes == change.option.device.peak_bytes, change.what
        assert option.host.bytes == change.option.host.bytes, change.what
        assert option.bucket_rule_bytes == change.option.bucket_rule_bytes, change.what


def test_nvme_buffers_use_the_default_count() -> None:
    here = facts(nvme="/local_nvme", nvme_size="10TB")
    chosen = Choice(stage=3, optimizer=Tier.NVME, parameters=Tier.NVME)
    zero = usual_config(here, chosen).zero
    for name, block in (("optimizer", zero.offload_optimizer), ("param", zero.offload_param)):
        key = find(["zero_optimization", f"offload_{name}", "buffer_count"])
        assert isinstance(key, Key) and block is not None
        assert block.buffer_count == key.default


def test_odd_micro_batch_is_divided() -> None:
    here = facts(model="llama-2-7b", seq_len=4096, micro_batch=9)
    config = usual_config(here, Choice(stage=3))
    keys = "/train_micro_batch_size_per_gpu", "/gradient_accumulation_steps"
    batches = [
        tuple(change.edits[key] for key in keys)
        for change in cheapest_changes(config, here, count=50)
        if keys[0] in change.edits
    ]
    assert batches and all(micro * steps == 9 for micro, steps in batches)


def test_changes_are_checked_against_disk_and_host_memory() -> None:
    here = facts(gpus=1, model="llama-2-70b", host_memory="512GiB")
    config = usual_config(here, Choice(stage=2))
    changes = cheapest_changes(config, here)
    assert all("LoRA" in change.parts[0] for change in changes if change.fits)
    with_disk = facts(gpus=1, model="llama-2-70b", host_memory="512GiB", nvme="/local")
    with_nvme = cheapest_changes(config, with_disk)
    assert with_nvme[0].fits
    assert with_nvme[0].edits["/zero_optimization/offload_param"]["nvme_path"] == "/local"


WINDOWED = {
    "model_type": "mistral",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "sliding_window": 1024,
}


@pytest.mark.parametrize(
    ("runtime", "length", "more", "expected"),
    [
        ("dsengine", 4096, {}, 4096**2),
        ("dsengine", LONGEST_DENSE_MASK, {}, LONGEST_DENSE_MASK**2),
        ("dsengine", 2 * LONGEST_DENSE_MASK, {}, 0),
        ("dsengine", 1024, {}, 0),
        ("dsengine", 4096, {"sequence_parallel": 1}, 0),
        ("dsengine", 4096, {"training_args": {"attn_implementation": "flash_attention_2"}}, 0),
        ("deepspeed", 4096, {}, 0),
    ],
)
def test_dense_masks_of_divided_sequences(
    runtime: str, length: int, more: dict[str, Any], expected: int
) -> None:
    """DeepSpeed ignores the window; longer sequences have masks in blocks."""
    chosen = {"sequence_parallel": 2, "seq_len": length, "model": hf_config.model(WINDOWED), **more}
    here = facts(**chosen)
    device = estimate_option(usual_config(here, USUAL[0]), here, runtime=runtime).device
    masks = [part.bytes for part in device.components if part.name == "attention mask"]
    assert sum(masks) == expected


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_limits_fit_and_the_next_step_does_not(runtime: str) -> None:
    whole = facts(sequence_parallel=1)
    answers = {limit.question: limit for limit in limits(whole, runtime=runtime)}
    without_offload = answers.pop("largest model (parameters), without offload")
    assert without_offload.how.startswith("stage 3") and "CPU" not in without_offload.how
    assert set(answers) == {
        "largest model (parameters)",
        "fewest GPUs",
        "largest micro batch",
        "longest sequence (tokens)",
    }
    for question, facts_at in BEYOND.items():
        value, effective = answers[question].value, answers[question].effective
        assert value is not None and effective is not None
        at_limit, beyond = facts_at(value, 0), facts_at(value, 1)
        assert any(_fits(choice, effective.zero, at_limit, runtime) for choice in USUAL), question
        assert not any(_fits(choice, effective.zero, beyond, runtime) for choice in USUAL), question


def test_longest_sequence_has_largest_micro_batch_one() -> None:
    def answer(question: str, **changes: object) -> int | None:
        here = facts(model="gpt2", gpus=1, **changes)
        answers = limits(here, usual_config(here, Choice(stage=2)))
        return next(limit.value for limit in answers if limit.question == question)

    longest = answer("longest sequence (tokens)")
    assert answer("largest micro batch", micro_batch=None, seq_len=longest) == 1


BEYOND: dict[str, Callable[[int, int], Facts]] = {
    "largest micro batch": lambda value, more: facts(micro_batch=value + more),
    "longest sequence (tokens)": lambda value, more: facts(seq_len=value + 128 * more),
}
"""The facts at a limit, and one step further."""


def _fits(choice: Choice, sizes: Zero, here: Facts, runtime: str) -> bool:
    """Return whether it fits in every program of the runtime, with or without recomputation."""
    usual = usual_config(here, choice)
    config = replace(usual, zero=with_choice(sizes, choice, here))
    return any(
        all(
            verdict_on(estimate_option(candidate, here, runtime=program), candidate, here).fits
            for program in programs(runtime_of(runtime))
        )
        for candidate in (config, with_recomputation(config))
    )


@pytest.mark.parametrize(
    "degrees",
    [{"tensor_parallel": 4}, {"sequence_parallel": 4}, {"pipeline_parallel": 2}],
    ids=lambda degrees: next(iter(degrees)),
)
def test_fewest_gpus_are_full_groups_of_parallel_ranks(degrees: dict[str, int]) -> None:
    here = facts(gpus=None, **degrees)
    fewest = next(limit for limit in limits(here) if limit.question == "fewest GPUs")
    assert fewest.value is not None and fewest.value % next(iter(degrees.values())) == 0


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_config_of_a_limit_is_valid_and_fits(runtime: str) -> None:
    for limit in limits(facts(), runtime=runtime)[-3:-1]:
        assert limit.effective is not None and limit.option is not None
        here, training = facts(), facts().training
        if limit.recompute and runtime == "deepspeed":
            # With DeepSpeed the script enables recomputation, which is a fact.
            recomputed = replace(
                training or TrainingFacts(), arguments={"gradient_checkpointing": True}
            )
            here = replace(here, training=recomputed)
        resolution = dsconfig.resolve(config_of(limit.effective), here, runtime=runtime)
        assert resolution.ok
        again = dsconfig.estimate(resolution, here).options[0]
        assert again.device.peak_bytes == limit.option.device.peak_bytes


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_chosen_candidate_fits_and_others_have_a_reason(runtime: str) -> None:
    here = facts(micro_batch=None, global_batch=64, host_memory="512GB")
    candidates = tune(here, runtime=runtime)
    winner, losers = candidates[0], candidates[1:]
    assert not winner.reason and all(fit.fits for fit in winner.option.fits)
    assert winner.choice.micro_batch * winner.choice.accumulation * 8 == 64
    assert losers and all(loser.reason for loser in losers)


@pytest.mark.parametrize("argument", ["none", "full"])
def test_recomputation_set_by_script_is_not_searched(argument: str) -> None:
    training = replace(
        facts().training or TrainingFacts(), arguments={"gradient_checkpointing": argument}
    )
    candidates = tune(replace(facts(model="gpt2"), training=training))
    assert {str(candidate.choice.recompute) for candidate in candidates} == {argument}


def test_search_needs_no_training_facts() -> None:
    here = gather(model="gpt2", gpus=1, device="h100")
    assert here.training is None
    winner = tune(here)[0]
    assert not winner.reason and winner.choice.stage == 0


def test_chosen_config_is_valid_and_estimated_the_same() -> None:
    import dsconfig

    here = facts(micro_batch=None)
    winner = tune(here, runtime="deepspeed")[0]
    resolution = dsconfig.resolve(config_of(winner.effective), here, runtime="deepspeed")
    assert resolution.ok
    again = dsconfig.estimate(resolution, here).options[0].device.peak_bytes
    assert again == winner.option.device.peak_bytes


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"gpus": 8, "model": "llama-2-13b"}, id="stage 3", marks=pytest.mark.long),
        pytest.param({"gpus": 8, "model": "llama-3.2-1b"}, id="small"),
        pytest.param(
            {"gpus": 1, "model": "llama-2-70b", "host_memory": "768GiB", "nvme": "/local_nvme"},
            id="nvme",
        ),
    ],
)
def test_chosen_config_validates_without_findings(more: dict[str, Any]) -> None:
    winner = tune(gather(device="a100-80gb", seq_len=2048, **more))[0]
    config = config_of(winner.effective)
    assert not winner.reason
    report = dsconfig.validate(config, runtime="dsengine")
    assert [finding.code for finding in report.diagnostics] == []
    for block in ("offload_optimizer", "offload_param"):
        if "nvme" in more:
            assert config["zero_optimization"][block]["nvme_path"] == "/local_nvme"


def test_bucket_peak_is_independent_of_the_memory_peak() -> None:
    short, long = (
        table(gather(gpus=8, model="llama-2-13b", seq_len=length)) for length in (None, 4096)
    )
    for first, second in zip(short.options, long.options, strict=True):
        assert first.bucket_allocated_bytes == second.bucket_allocated_bytes
        assert bool(first.stage) == bool(first.bucket_allocated_bytes)


def test_estimate_of_invalid_config_points_to_validate() -> None:
    world = gather(params="1e9", gpus=2)
    broken = dsconfig.resolve({"train_batch_size": 2, "zero_optimization": {"stage": "x"}}, world)
    with pytest.raises(ValueError, match="not resolved: DSC032"):
        dsconfig.estimate(broken, world)


def test_cpu_holds_full_model_while_sharding_without_zero_init() -> None:
    """The full model takes 4 bytes per parameter beside a rank's shards; zero.Init avoids it."""
    model = facts(model="gpt2").model
    assert model is not None

    def init_bytes(**arguments: object) -> int:
        training = replace(facts().training or TrainingFacts(), arguments=arguments)
        here = replace(facts(model="gpt2", device="cpu"), training=training)
        device = estimate_option(usual_config(here, Choice(stage=3)), here).device
        return next(size for phase, size in device.phase_bytes.items() if str(phase) == "init")

    assert init_bytes(zero_init=False) > 4 * model.parameters > init_bytes()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_ranks_build_full_model_in_host_memory_without_zero_init(
    runtime: str,
) -> None:
    model = facts().model
    assert model is not None

    def host(choice: Choice, **arguments: object) -> TierMemory:
        training = replace(facts().training or TrainingFacts(), arguments=arguments)
        here = replace(facts(), training=training)
        return estimate_option(usual_config(here, choice), here, runtime=runtime).host

    eight_copies = 8 * 4 * model.parameters
    single = "float32"
    assert host(Choice(stage=1), dtype=single).peak_bytes == eight_copies
    assert host(Choice(stage=1)).bytes == 0
    assert host(Choice(stage=1), dtype="bfloat16").peak_bytes == eight_copies // 2
    assert host(Choice(stage=3), zero_init=False, dtype=single).peak_bytes == eight_copies
    largest = 8 * 4 * (model.largest_module or 0)
    assert host(Choice(stage=3), dtype=single).peak_bytes == largest


@pytest.mark.parametrize(
    ("model", "release", "arguments", "width"),
    [
        ("llama-2-7b", None, {}, 2),
        ("llama-2-7b", "5.0.0", {}, 2),
        ("llama-2-7b", "4.57.1", {}, 4),
        ("llama-2-7b", "4.57.1", {"torch_dtype": "auto"}, 2),
        ("llama-2-7b", "4.57.1", {"torch_dtype": "torch.bfloat16"}, 2),
        ("llama-2-7b", None, {"dtype": "float32"}, 4),
        ("opt-6.7b", None, {}, 2),
        ("gpt2", None, {}, 4),
        ("t5-3b", None, {}, 4),
        (None, None, {}, 4),
    ],
)
def test_from_pretrained_keeps_the_dtype_of_a_checkpoint_since_5(
    model: str | None, release: str | None, arguments: dict[str, Any], width: int
) -> None:
    here = facts(
        model=model,
        params=None if model else "7e9",
        releases={"transformers": release} if release else {},
        training_args=arguments,
    )
    assert here.model is not None
    option = estimate_option(usual_config(here, Choice(stage=1)), here, runtime="transformers")
    assert option.host.peak_bytes == 8 * width * here.model.parameters


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", None])
def test_config_json_states_the_dtype_of_its_checkpoint(dtype: str | None) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"model_type": "llama", "vocab_size": 100, **sizes, "dtype": dtype}
    assert hf_config.model(config).stored_in == dtype


@pytest.mark.parametrize("axis", ["tensor", "expert"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_rank_builds_the_full_model_before_it_is_divided(runtime: str, axis: str) -> None:
    """Run live with AutoTP of two ranks: each builds all parameters, and keeps half of them."""
    model = "mixtral-8x7b" if axis == "expert" else "llama-2-7b"
    here = facts(model=model)
    divided = facts(model=model, **{f"{axis}_parallel": 2})

    def built(known: Facts) -> list[int]:
        config = usual_config(known, Choice(stage=1))
        parts = estimate_option(config, known, runtime=runtime).host.components
        return [part.bytes for part in parts if part.name == "model as built"]

    assert built(divided) == built(here) != []


def test_host_states_coexist_with_the_model_only_in_dsengine() -> None:
    offloaded, here = Choice(stage=2, optimizer=Tier.HOST), facts(training_args=LOADED_IN_FP32)
    ours, theirs = (
        estimate_option(usual_config(here, offloaded), here, runtime=runtime).host
        for runtime in RUNTIMES
    )
    masters = next(part.bytes for part in ours.components if part.name == "master weights")
    assert ours.peak_bytes == theirs.peak_bytes + masters


def test_model_too_large_to_build_in_host_memory_does_not_fit() -> None:
    # Eight copies of 7e9 parameters in fp32 are 201 GiB.
    here = facts(host_memory="128GiB", training_args=LOADED_IN_FP32)
    candidates = tune(here)
    assert any(
        "to build the model" in candidate.reason
        for candidate in candidates
        if candidate.choice.stage == 2
    )
    assert not candidates[0].reason
    assert {candidate.choice.stage for candidate in candidates if "time" in candidate.reason} == {3}


def test_too_small_disk_does_not_fit() -> None:
    world = {"gpus": 1, "model": "llama-2-70b", "host_memory": "768GiB", "nvme": "/local"}
    assert not tune(facts(**world, micro_batch=None))[0].reason
    candidates = tune(facts(**world, micro_batch=None, nvme_size="100GB"))
    assert any("of NVMe per node" in candidate.reason for candidate in candidates)
    assert candidates[0].reason


def test_model_is_counted_once_on_cpu() -> None:
    here = facts(device="cpu", device_memory="64GiB", gpus=1, model="gpt2")
    option = estimate_option(usual_config(here, Choice(stage=1)), here)
    assert option.host.peak_bytes == 0
    assert option.device.phase_bytes[Phase.INIT] > 0


def test_offload_on_cpu_stays_in_the_same_memory() -> None:
    here = facts(device="cpu", device_memory="64GiB", gpus=2, model="gpt2")
    option = estimate_option(usual_config(here, Choice(stage=2, optimizer=Tier.HOST)), here)
    assert option.host.bytes > 0
    phase_bytes = option.device.phase_bytes
    assert (
        option.device.visible_bytes
        >= max(phase_bytes[Phase.BACKWARD], phase_bytes[Phase.STEP]) + option.host.bytes // 2
    )
    assert option.device.visible_bytes <= option.device.peak_bytes + option.host.bytes // 2
    assert option.fits[0].headroom_bytes == 64 * 2**30 - option.device.visible_bytes


def test_building_on_cpu_holds_model_and_offloaded_masters() -> None:
    here = facts(device="cpu", device_memory="64GiB", model="gpt2", seq_len=8)
    option = estimate_option(usual_config(here, Choice(stage=2, optimizer=Tier.HOST)), here)
    [masters] = [part.bytes for part in option.host.components if part.name == "master weights"]
    assert option.device.peak_phase == "init"
    assert option.device.visible_bytes == option.device.phase_bytes[Phase.INIT] + masters // 8


def test_reason_names_the_largest_difference() -> None:
    causes = set[str]()
    for model, device, nodes, link in (
        ("llama-2-7b", "a100-80gb", 1, None),
        ("gpt2-xl", "rtx-4090", 1, None),
        ("gpt2", "v100-16gb", 1, None),
        ("gpt2-xl", "a100-80gb", 8, "10Gbit"),
    ):
        here = facts(model=model, device=device, nodes=nodes, node_link=link)
        best, *others = tune(here)
        for candidate in others:
            if "x the time" not in candidate.reason:
                continue
            slower, fastest = candidate.time, best.time
            differences = {
                part: getattr(slower, part) / slower.samples
                - getattr(fastest, part) / fastest.samples
                for part in ("offload", "communication", "compute")
            }
            reason = candidate.reason.partition("(")[2].rstrip(")")
            largest = max(differences, key=lambda name: differences[name])
            assert largest == ("compute" if reason in ("update", "recomputation") else reason)
            causes.add(reason)
    assert {"offload", "communication", "recomputation"} <= causes


def test_full_model_creation_leaves_no_cache() -> None:
    """DeepSpeed's stage 3: reserved is the larger of creation and training, not their sum."""
    choice = usual_config(facts(), Choice(stage=3))
    sharded = estimate_option(choice, facts(), runtime="deepspeed").device
    training = replace(facts().training or TrainingFacts(), arguments={"zero_init": False})
    here = replace(facts(), training=training)
    model = here.model
    assert model is not None
    full = estimate_option(choice, here, runtime="deepspeed").device
    assert full.phase_bytes[Phase.INIT] > 2 * model.parameters
    assert full.phase_bytes[Phase.BACKWARD] == sharded.phase_bytes[Phase.BACKWARD]
    assert full.reserved_bytes == max(
        sharded.reserved_bytes,
        int(1.05 * (full.phase_bytes[Phase.INIT] + workspace_bytes("8.0"))),
    )


@pytest.mark.parametrize(
    ("stage", "offload", "momentum"), [(1, None, 2), (2, None, 2), (2, "cpu", 4), (3, "cpu", 2)]
)
def test_muon_momentum_has_deepspeeds_dtype(stage: int, offload: str | None, momentum: int) -> None:
    """Runs of DeepSpeed 0.19.8 in bf16 used 2 bytes, and 4 where stages 1 and 2 offload."""
    zero: dict[str, Any] = {"stage": stage, "reduce_scatter": False}
    if offload:
        zero["offload_optimizer"] = {"device": offload}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "Muon", "params": {"lr": 1e-3}},
        "zero_optimization": zero,
    }
    here = facts()
    resolution = dsconfig.resolve(config, here, runtime="deepspeed")
    option = dsconfig.estimate(resolution, here).options[0]
    tier, ranks = (option.host, 1) if offload else (option.device, 8)
    state = max(part.bytes for part in tier.components if part.name == "optimizer state")
    assert here.model is not None
    tables = 2 * 32000 * 4096 + 65 * 4096  # embedding, head and norms: Adam's two moments
    matrices = here.model.parameters - tables
    assert state == pytest.approx((tables * 8 + matrices * momentum) / ranks, rel=0.001)
