"""Estimates that depend on the release, the GPU or the parallel ranks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import dsconfig
from dsconfig.commands import plan_tables
from dsconfig.cost import hardware
from dsconfig.cost.activations import activations_of
from dsconfig.cost.assumptions import decisive_assumptions
from dsconfig.cost.estimate import Option, Phase
from dsconfig.cost.estimator import estimate_option
from dsconfig.cost.pipeline import blocks_of_stage
from dsconfig.cost.step_time import step_time
from dsconfig.cost.usual import known_devices
from dsconfig.facts import HostFacts, gather
from dsconfig.project.verdict import verdict
from dsconfig.runtimes.base import runtime_of

GIB = 2**30


def estimated(
    zero: dict[str, Any],
    *,
    version: str | None = None,
    runtime: str = "deepspeed",
    more: Mapping[str, Any] = {},
    **changes: Any,
) -> Option:
    """Return the estimate of a config on the eight GPUs of one node, with other keys and facts."""
    facts = gather(
        **{
            "gpus": 8,
            "nodes": 1,
            "model": "llama-2-13b",
            "device": "a100-40gb",
            "seq_len": 2048,
            "training_args": {"gradient_checkpointing": True},
            **changes,
        }
    )
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": zero,
        **more,
    }
    resolution = dsconfig.resolve(config, facts, runtime=runtime, version=version)
    assert resolution.ok, resolution.diagnostics
    return dsconfig.estimate(resolution, facts).options[0]


def component_bytes(option: Option, name: str, phase: Phase | None = None) -> int:
    return sum(
        part.bytes
        for part in option.device.components
        if part.name == name and (phase is None or phase in part.phases)
    )


OFFLOADED = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
WEIGHTS = 2 * 13_015_864_320


@pytest.mark.parametrize(
    ("version", "device", "copies"),
    [("0.18.6", "a100-80gb", 1), ("0.19.8", "a100-80gb", 2), ("0.19.8", "a100-40gb", 1)],
)
def test_flattening_copies_weights_on_the_device_if_they_fit(
    version: str, device: str, copies: int
) -> None:
    option = estimated(OFFLOADED, version=version, device=device)
    init_bytes = option.device.phase_bytes[Phase.INIT]
    assert init_bytes == pytest.approx(copies * WEIGHTS, rel=0.02)
    flattened = [part for part in option.host.components if part.name == "weights being flattened"]
    assert sum(part.bytes for part in flattened) == (0 if copies == 2 else 8 * 2 * WEIGHTS)


@pytest.mark.parametrize(
    ("version", "casts"),
    [("0.14.0", False), ("0.14.1", True), ("0.16.9", True), ("0.17.0", False)],
)
def test_some_releases_cast_masters_on_the_device_in_the_step(version: str, casts: bool) -> None:
    option = estimated(OFFLOADED, version=version)
    expected = 2 * WEIGHTS // 8 if casts else 0
    assert component_bytes(option, "fp32 masters cast on the device") == pytest.approx(
        expected, rel=0.001
    )


@pytest.mark.parametrize(
    ("version", "zero_init", "wrapper", "keeps"),
    [
        ("0.19.3", False, True, True),
        ("0.19.4", False, True, False),
        ("0.19.3", True, True, False),
        ("0.19.8", True, False, True),
    ],
)
def test_torch_linear_keeps_gathered_weights_for_backward(
    version: str, zero_init: bool, wrapper: bool, keeps: bool
) -> None:
    option = estimated(
        {"stage": 3, "memory_efficient_linear": wrapper, "stage3_max_reuse_distance": 0},
        version=version,
        training_args={"zero_init": zero_init, "gradient_checkpointing": False},
    )
    kept_bytes = component_bytes(option, "gathered weights kept for backward", Phase.BACKWARD)
    assert (kept_bytes > 0.5 * WEIGHTS) is keeps


def test_recomputation_keeps_no_gathered_weights() -> None:
    option = estimated({"stage": 3, "memory_efficient_linear": False})
    assert not component_bytes(option, "gathered weights kept for backward")


@pytest.mark.parametrize(("version", "copies"), [("0.18.4", 2), ("0.18.5", 1 + 1 / 8)])
def test_creation_gathers_the_largest_parameter(version: str, copies: float) -> None:
    """Llama-3-8B with everything on the host: 1.99 GiB were printed for a release before 0.18.5."""
    host = {"device": "cpu", "pin_memory": True}
    option = estimated(
        {"stage": 3, "offload_optimizer": host, "offload_param": host, "reduce_bucket_size": 1000},
        version=version,
        model="llama-3-8b",
    )
    largest = 128_256 * 4096 * 2
    assert option.device.phase_bytes[Phase.INIT] == pytest.approx(copies * largest, rel=0.01)


def activations(option: Option) -> int:
    return component_bytes(option, "activations", Phase.FORWARD)


def test_degrees_in_file_match_flags() -> None:
    plain = estimated({"stage": 1})
    for flag, keys in (
        ("tensor_parallel", {"tensor_parallel": {"autotp_size": 4}}),
        ("sequence_parallel", {"sequence_parallel_size": 4}),
    ):
        degree: dict[str, Any] = {flag: 4}
        by_flag, by_file = estimated({"stage": 1}, **degree), estimated({"stage": 1}, more=keys)
        assert by_file.device.phase_bytes == by_flag.device.phase_bytes
        assert by_file.device.peak_bytes != plain.device.peak_bytes
        assert activations(by_file) > 0


@pytest.mark.parametrize("degree", ["tensor_parallel", "sequence_parallel", "pipeline_parallel"])
def test_no_degree_removes_all_activations(degree: str) -> None:
    degrees: dict[str, Any] = {degree: 4}
    option = estimated({"stage": 1}, **degrees)
    assert activations(option) and option.step is not None


def test_first_pipeline_stage_keeps_one_micro_batch_per_stage() -> None:
    one_micro_batch = estimated({"stage": 1}, pipeline_parallel=4)
    accumulating = estimated(
        {"stage": 1}, pipeline_parallel=4, more={"gradient_accumulation_steps": 16}
    )
    others = component_bytes(accumulating, "activations of other micro batches", Phase.FORWARD)
    # Ten blocks each keep 2sbh; so do the stage's input and its output, beside the token ids.
    bytes_per_micro_batch = (10 + 2) * 2 * 2048 * 5120
    assert others == pytest.approx(3 * bytes_per_micro_batch, rel=0.01)
    assert not component_bytes(one_micro_batch, "activations of other micro batches")
    assert accumulating.step is not None and accumulating.step.bubble_seconds > 0


def test_pipeline_stages_in_file_match_flag_up_to_zero_1() -> None:
    """The key counts as a request, although only the script can create a PipelineModule."""
    more = {"gradient_accumulation_steps": 8, "pipeline": {"stages": 4}}
    common = {"device": "a100-80gb", "training_args": {}}
    by_file = estimated({"stage": 1}, more=more, **common)
    by_flag = estimated({"stage": 1}, pipeline_parallel=4, more={**more, "pipeline": {}}, **common)
    assert by_file.device.phase_bytes == by_flag.device.phase_bytes
    assert component_bytes(by_file, "activations of other micro batches") > 0
    indivisible = estimated({"stage": 1}, more={**more, "pipeline": {"stages": 3}}, **common)
    assert not component_bytes(indivisible, "activations of other micro batches"), (
        "3 does not divide 8 ranks"
    )
    stage_2 = estimated({"stage": 2}, more=more, **common)
    assert not component_bytes(stage_2, "activations of other micro batches"), (
        "PipelineModule is rejected"
    )


def test_pipeline_checkpoint_interval_sets_recomputation() -> None:
    """Each interval of blocks is recomputed from its input; only PipelineModule reads the key."""
    common = {"device": "a100-80gb", "training_args": {}, "pipeline_parallel": 4}

    def kept(interval: int, **facts: Any) -> tuple[int, int]:
        more = {"pipeline": {"activation_checkpoint_interval": interval}}
        option = estimated({"stage": 1}, more=more, **{**common, **facts})
        working = component_bytes(option, "working set of one block", Phase.BACKWARD)
        return component_bytes(option, "activations", Phase.FORWARD), working

    (all_blocks, _), (each_block, one), (every_second, two) = (
        kept(0),
        kept(1),
        kept(2),
    )
    assert each_block == 10 * 2 * 2048 * 5120 and every_second == each_block / 2
    assert all_blocks > 20 * each_block
    assert kept(0, training_args={"gradient_checkpointing": True})[0] == each_block
    assert kept(1, pipeline_parallel=1, gpus=64, nodes=8)[0] > 40 * each_block
    assert one <= two


def test_remaining_blocks_go_to_the_first_stages() -> None:
    assert [len(blocks_of_stage(10, stage, 4)) for stage in range(4)] == [3, 3, 2, 2]
    assert [block for stage in range(4) for block in blocks_of_stage(10, stage, 4)] == list(
        range(10)
    )
    with pytest.raises(ValueError, match=r"pipeline_parallel=4.*use at most 3"):
        blocks_of_stage(3, 0, 4)


def test_each_mesh_axis_has_a_communicator() -> None:
    one = gather(gpus=1, nodes=1)
    three = gather(gpus=8, nodes=1, tensor_parallel=2, pipeline_parallel=2)
    more = hardware.outside_bytes(three) - hardware.outside_bytes(one)
    assert more == 3 * hardware.COMMUNICATOR_BYTES


def test_ring_between_nodes_uses_all_adapters() -> None:
    def link(**facts: Any) -> float:
        return hardware.rates(gather(device="a100-80gb", **facts)).link

    usual = (0.5 * 0.9) ** 0.5
    assert link(gpus=16, nodes=16, node_link="25") == pytest.approx(25e9 * usual)
    assert link(gpus=16, nodes=4, node_link="200Gbit") == pytest.approx(100e9 * usual)
    assert link(gpus=8, nodes=1) == pytest.approx(300e9 * usual)


@pytest.mark.parametrize("version", ["0.19.5", "0.19.8"])
def test_offloaded_gradient_has_fp64_norm_and_overflow_test(version: str) -> None:
    option = estimated(OFFLOADED, version=version, model="llama-3-8b", device="a100-80gb")
    largest = 128_256 * 4_096
    norm = component_bytes(option, "gradient in fp64 for its norm", Phase.BACKWARD)
    overflow = component_bytes(option, "overflow test", Phase.BACKWARD)
    assert (norm, overflow) == ((8 * largest, 0) if version == "0.19.8" else (0, 11 * largest))


def test_gradient_partition_is_on_the_device_without_offload() -> None:
    in_fp32 = {"data_types": {"grad_accum_dtype": "fp32"}}
    on_device, offloaded = (
        estimated(zero, device="h100-80gb", more=in_fp32) for zero in ({"stage": 2}, OFFLOADED)
    )
    assert component_bytes(on_device, "gradient partition") == pytest.approx(
        2 * WEIGHTS // 8, rel=0.001
    )
    assert not component_bytes(offloaded, "gradient partition")


def test_overflow_test_names_its_cause() -> None:
    option = estimated(OFFLOADED, version="0.19.5")
    (tested,) = (part for part in option.device.components if part.name == "overflow test")
    assert tested.pointer == "/zero_optimization/offload_optimizer"


def test_stage_3_copies_gradient_shards_back() -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    offloaded, on_device = (
        estimated(config, model="llama-3-8b", gpus=2, training_args={}, seq_len=128)
        for config in (zero, {"stage": 3})
    )
    shard = 14_336 * 4_096 // 2  # of an MLP weight, where the peak is
    assert component_bytes(offloaded, "gradient in fp64 for its norm") == 8 * shard
    assert component_bytes(offloaded, "gradient on its way to the host") == 2 * shard
    assert not component_bytes(on_device, "gradient in fp64 for its norm")


def test_required_memory_excludes_separate_stream_pools() -> None:
    device = estimated({"stage": 3}).device
    assert device.needed_bytes < device.visible_bytes
    assert device.least_needed_bytes < device.needed_bytes < device.most_needed_bytes


@pytest.mark.parametrize(("bound", "text"), [("needed", "Fits"), ("least_needed", "May not fit")])
def test_verdict_between_least_and_most_fragmentation(bound: str, text: str) -> None:
    needed = getattr(estimated({"stage": 3}).device, f"{bound}_bytes")
    facts = gather(device="gpu", device_memory=f"{needed}")
    option = estimated({"stage": 3}, device="gpu", device_memory=f"{needed}")
    assert option.fits[0].may_fit and option.fits[0].fits is (text == "Fits")
    assert verdict(option, facts).startswith(text)
    smaller = estimated({"stage": 3}, device="gpu", device_memory=f"{needed - 2**20}").fits[0]
    assert smaller.may_fit is (text == "Fits") and not smaller.fits


@pytest.mark.parametrize(
    ("tier", "capacity", "shortfall"),
    [
        ({"device": "cpu"}, {"host_memory": "150GB"}, "of host memory per node"),
        ({"device": "nvme", "nvme_path": "/tmp"}, {"nvme_size": "1GB"}, "of NVMe per node"),
    ],
)
def test_estimate_and_plan_report_the_same_host_shortfall(
    tier: dict[str, Any], capacity: dict[str, Any], shortfall: str
) -> None:
    facts = gather(gpus=4, model="llama-3-8b", device="a100-80gb", seq_len=2048, **capacity)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": tier},
    }
    resolution = dsconfig.resolve(config, facts, runtime="deepspeed")
    estimated_verdict = verdict(dsconfig.estimate(resolution, facts).options[0], facts)
    assert estimated_verdict.startswith("Does not fit: needs ") and shortfall in estimated_verdict
    plan = dsconfig.plan(resolution, facts)
    assert plan_tables.does_not_fit(plan, facts) and plan_tables.verdict(plan, facts).startswith(
        estimated_verdict
    )


def test_decisive_assumptions_are_reported() -> None:
    def decisive(
        zero: dict[str, Any], memory: int, length: int = 16_384, **extra: Any
    ) -> list[tuple[str, bool]]:
        facts = gather(
            gpus=8,
            model="llama-3-8b",
            device="gpu",
            device_memory=f"{memory}",
            seq_len=length,
            micro_batch=1,
            **extra,
        )
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": zero,
            "bf16": {"enabled": True},
        }
        effective = dsconfig.resolve(config, facts, runtime="deepspeed").effective
        assert effective is not None
        program = runtime_of("deepspeed")
        option = estimate_option(effective, facts, runtime=program)
        assumptions = decisive_assumptions(
            option, effective, facts, program, release_is_known=False
        )
        return [(assumption.flag, assumption.fits) for assumption in assumptions]

    recomputed = {"gradient_checkpointing": True}
    plain = estimated({"stage": 3}, model="llama-3-8b", seq_len=16_384).device
    assert decisive({"stage": 3}, plain.needed_bytes - 2**30, training_args=recomputed) == [
        ('loss="fused"', True)
    ]
    assert not decisive({"stage": 3}, plain.needed_bytes + 2**30, training_args=recomputed)
    fused = {**recomputed, "loss": "fused"}
    assert not decisive({"stage": 3}, plain.needed_bytes // 2, training_args=fused)
    small: dict[str, Any] = {
        "device": "gpu",
        "device_memory": "30GiB",
    }  # less than two copies of the weights
    newest = estimated(OFFLOADED, model="llama-3-8b", seq_len=512, **small).device
    assert decisive(OFFLOADED, newest.needed_bytes + 2**28, 512, training_args=recomputed) == [
        ('version="0.19.5"', False)
    ]


def test_deepspeed_sends_accumulated_gradients_both_ways() -> None:
    """Count bytes between device and host: dsengine copies each pass's gradient to the host and the
    weight back; DeepSpeed copies the last one in fp32, and earlier sums in both directions."""
    owned, rate = 13_015_864_320 / 8, 10e9
    host = HostFacts(card_gb_per_second=rate / 1e9)

    def bytes_sent(stage: int, passes: int, program: str) -> float:
        facts = replace(
            gather(gpus=8, nodes=1, model="llama-2-13b", device="a100-80gb", micro_batch=1),
            host=host,
        )
        zero = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": zero,
            "bf16": {"enabled": True},
            "gradient_accumulation_steps": passes,
        }
        effective = dsconfig.resolve(config, facts, runtime=program).effective
        assert effective is not None
        time = step_time(effective, facts, runtime=program)
        adam = owned / hardware.rates(facts).host_adam
        return round((time.offload - adam) * rate / owned, 3)

    assert bytes_sent(2, 4, "dsengine") == 2 * (4 + 1)
    assert bytes_sent(2, 1, "deepspeed") == 4 + 2
    assert bytes_sent(2, 4, "deepspeed") == 2 * 4 + 2 * 3 + 4 + 2
    assert bytes_sent(3, 4, "deepspeed") == 2 * 2 * 4 + 4 + 2


def test_gpus_copying_at_once_share_the_uplink() -> None:
    facts = gather(gpus=8, nodes=1, device="a100-80gb")
    slow, fast = (hardware.rates(facts, end).pcie for end in ("slow", "fast"))
    assert fast == pytest.approx(2 * slow)
    alone = gather(gpus=1, nodes=1, device="a100-80gb")
    assert hardware.rates(alone, "slow").pcie == hardware.rates(alone, "fast").pcie == fast


@pytest.mark.parametrize(
    ("model", "transformers", "bytes_each"),
    [("llama-2-7b", "4.45.2", 16), ("llama-2-7b", "4.46.0", 14), ("gpt-neox-20b", "4.38.0", 14)],
)
def test_plain_loss_depends_on_transformers_release(
    model: str, transformers: str, bytes_each: int
) -> None:
    facts = gather(
        model=model,
        gpus=8,
        micro_batch=1,
        seq_len=1024,
        releases={"transformers": transformers},
    )
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    effective = dsconfig.resolve(config, facts, runtime="deepspeed").effective
    assert effective is not None and facts.model is not None
    assert facts.model.architecture is not None
    logits = 1024 * facts.model.architecture.vocab_size
    assert activations_of(effective, facts).logits_backward == logits * bytes_each


@pytest.mark.parametrize(
    ("model", "releases", "written_out"),
    [
        ("llama-2-7b", None, False),
        ("llama-2-7b", {"transformers": "4.35.2"}, True),
        ("llama-2-7b", {"transformers": "4.36.0"}, False),
        ("bloom-7b1", None, True),
        ("gpt-oss-20b", None, True),
    ],
)
def test_attention_default_follows_transformers(
    model: str, releases: dict[str, str] | None, written_out: bool
) -> None:
    common = {"model": model, "releases": releases, "device": "h200"}
    default, flash = (
        {**common, "training_args": arguments} for arguments in ({}, {"attn_implementation": "fa2"})
    )
    peaks = (estimated({"stage": 3}, **facts).device.peak_bytes for facts in (default, flash))
    assert (next(peaks) > next(peaks)) is written_out


def test_flash_attention_is_reported_if_decisive_and_available() -> None:
    """transformers has no flash attention for BLOOM."""

    def flags(model: str) -> set[str]:
        facts = gather(gpus=8, model=model, device="h200", seq_len=8192)
        config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
        config["zero_optimization"] = {"stage": 3}
        program = runtime_of("deepspeed")
        effective = dsconfig.resolve(config, facts, runtime=program).effective
        assert effective is not None
        option = estimate_option(effective, facts, runtime=program)
        assumptions = decisive_assumptions(option, effective, facts, program, release_is_known=True)
        return {assumption.flag for assumption in assumptions}

    assert 'attention="flash"' in flags("gpt-oss-20b")
    assert 'attention="flash"' not in flags("bloom-7b1")


@pytest.mark.parametrize(
    ("releases", "is_eager"),
    [
        ({"torch": "1.12.1"}, True),
        ({"torch": "1.13.0"}, False),
        ({"torch": "2.0.1", "cuda": "11.6"}, True),
        ({"torch": "1.12.1", "cuda": "11.7"}, True),
        ({"cuda": "12.1"}, False),
    ],
)
def test_old_torch_and_cuda_load_all_kernels(releases: dict[str, str], is_eager: bool) -> None:
    least = hardware.outside_bytes(gather(gpus=8))
    more = hardware.outside_bytes(gather(gpus=8, releases=releases)) - least
    assert more == is_eager * hardware.EAGER_LOADING_BYTES


def test_named_device_supports_the_dtype() -> None:
    facts = gather(gpus=8, model="gpt2", seq_len=1024)
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    resolution = dsconfig.resolve(config, facts, runtime="deepspeed")
    option = dsconfig.estimate(resolution, facts).options[0]
    for precision, has_turing in (("fp16", True), ("bf16", False)):
        devices = dict(known_devices(precision))
        assert ("RTX-2080-Ti" in devices) is has_turing
        large = [name for name in devices if devices[name] >= option.device.needed_bytes]
        assert f"({min(large, key=devices.__getitem__)})" in verdict(option, facts, precision)


def test_single_rank_gathers_nothing() -> None:
    """Parameters are views of shards on the device, copies in host memory; before 0.9.0 they were
    gathered as on several ranks."""
    one: dict[str, Any] = {"gpus": 1, "model": "gpt2-large", "device": "a100-80gb"}
    names = ("gathered parameters", "gather buffer", "gather of one parameter at creation")

    def gathered(zero: dict[str, Any], version: str | None = None) -> tuple[bool, ...]:
        option = estimated({"stage": 3, **zero}, version=version, **one)
        return tuple(component_bytes(option, name) > 0 for name in names)

    host = {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
    assert gathered({}) == (False, False, False)
    assert gathered(host)[:2] == (True, False)
    assert gathered({}, "0.8.3")[0]
    assert gathered({"mics_shard_size": 1}, "0.16.9")[0], "MiCS has its own gather"


@pytest.mark.parametrize("contiguous", [True, False])
def test_gradients_without_bucket_are_cast_for_communication(contiguous: bool) -> None:
    """Since 0.17 a bucket of stage 3 has the communication dtype already."""
    zero = {"stage": 3, "contiguous_gradients": contiguous}
    option = estimated(zero, more={"communication_data_type": "fp32"})
    assert (component_bytes(option, "bucket cast for communication") > 0) is not contiguous
