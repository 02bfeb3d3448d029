"""Rules for known behavior of DeepSpeed and accelerate under sequence and tensor parallelism.

Measured with DeepSpeed 0.19.8 on two and four ranks over gloo, transformers 5.23; ranges were read
in the sources of the first and the last release.
"""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.fault import Evidence, FaultFinding, fault
from dsconfig.checks.registry import MODEL
from dsconfig.cost.divisions import recurrent_layers
from dsconfig.report import Effect
from dsconfig.runtimes.capabilities import (
    AUTOTP_SINCE,
    NO_AUTOTP,
    STYLES_REQUIRED_SINCE,
    unconverted_styles,
)
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath


def sequence_degree(config: Context) -> int:
    """Return the sequence-parallel degree of a flag, of accelerate's YAML, or of the config."""
    written = config.get("sequence_parallel_size")
    return max(config.facts.degrees.sequence, written if type(written) is int else 1)


@fault(
    "DSC871",
    "0.15.0 to 0.19.8",
    "deepspeedai/DeepSpeed#5248",
    "multiply gradient_clipping by the sequence-parallel degree, or use stage 3",
    triggers="gradient_clipping",
    evidence=Evidence.ENDS,
)
def norm_times_sequence_ranks(config: Context) -> Iterator[FaultFinding]:
    """Gradient norm times the sequence-parallel degree at stages 1 and 2

    Under Ulysses, gradients are summed over the ranks of a sequence and divided by the
    data-parallel ranks only. The norm is larger by the sequence-parallel degree N, so the clipping
    threshold acts as 1/N of it. Adam hides the factor in the update itself; SGD does not. Measured:
    2.0 with 2 ranks at stages 1 and 2, 1.0 at stage 3.

    with: gpus=8
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "data_parallel_size": 2,
        "sequence_parallel_size": 4, "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "data_parallel_size": 2,
        "sequence_parallel_size": 4, "zero_optimization": {"stage": 3}}
    """
    degree, clip = sequence_degree(config), config.number("gradient_clipping")
    if degree > 1 and config.stage in (1, 2) and clip:
        behavior = (
            f"compute a gradient norm {degree} times too large at stage {config.stage} under "
            f"sequence parallelism: gradients are clipped at {clip / degree:g}"
        )
        divides = config.facts.degrees.sequence > 1 or config.has("data_parallel_size")
        yield FaultFinding(paths.GRADIENT_CLIPPING, behavior, certain=divides)


WINDOWED = frozenset(("cohere2", "exaone4", "gemma2", "gemma3", "gemma3_text", "gpt_oss", "olmo3"))
"""Families with sliding windows in every published model."""


@fault(
    "DSC872",
    "0.17.0 to 0.19.8",
    "huggingface/accelerate#4177",
    'use attn_implementation "flash_attention_2", or a model without windows',
    triggers=f"sequence_parallel_size {MODEL}",
    evidence=Evidence.ENDS,
)
def window_dropped_under_ulysses(config: Context) -> Iterator[FaultFinding]:
    """sdpa ignores sliding windows and packed samples under sequence parallelism

    DeepSpeed's Ulysses attention passes no mask to `sdpa`, only that it is causal: sliding windows
    (Gemma 2 and 3, gpt-oss, Mistral 7B v0.1) and the limits of packed samples are ignored. Measured
    per-token loss errors are 0.2 to 0.4. Flash attention gets windows and positions as arguments.

    with: runtime="deepspeed", model="gemma-2-9b", gpus=8, training_args={
        "attn_implementation": "sdpa"}
    bad: {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 2}
    good: {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 1}
    """
    kernel = config.facts.execution.get("attn_implementation") or "sdpa"
    if sequence_degree(config) == 1 or kernel != "sdpa":
        return
    path: KeyPath = paths.SEQUENCE_PARALLEL if config.has(*paths.SEQUENCE_PARALLEL) else paths.ROOT
    certain = config.facts.execution.get("attn_implementation") is not None
    if _has_window(config):
        behavior = f"ignore the sliding window of {_name(config)} with sdpa attention"
        yield FaultFinding(path, behavior, certain)
    elif config.facts.arguments.get("packing"):
        behavior = "attend from each packed sample to those before it with sdpa attention"
        yield FaultFinding(path, behavior, certain)


def _has_window(config: Context) -> bool:
    model = config.facts.model
    if model is None or model.architecture is None:
        return False
    window, length = model.sliding_window, config.facts.sequence_length
    if window is not None and length is not None and length <= window:
        return False
    return window is not None or model.architecture.family in WINDOWED


def _name(config: Context) -> str:
    model = config.facts.named_model
    return model.name if model is not None else "the model"


@fault(
    "DSC873",
    "0.17.0 to 0.19.8",
    "huggingface/accelerate#4177",
    "set the sequence-parallel degree to 1",
    triggers=f"sequence_parallel_size {MODEL}",
    evidence=Evidence.ENDS,
)
def recurrent_layers_under_ulysses(config: Context) -> Iterator[FaultFinding]:
    """Recurrent layers restart on every rank under sequence parallelism

    Ulysses exchanges tokens around attention only. Mamba, gated delta nets and convolutions keep a
    state along the sequence, which each rank starts from zero: the loss looks plausible, and the
    gradients are wrong. accelerate 1.15 refuses such models, as does dsengine.

    with: model="qwen3-next-80b-a3b", gpus=8
    bad: {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 2}
    good: {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 1}
    """
    shape = config.facts.architecture
    count = recurrent_layers(shape) if shape is not None else 0
    if count and sequence_degree(config) > 1:
        behavior = f"reset the state of {count} recurrent layers of {_name(config)} on every rank"
        key = paths.SEQUENCE_PARALLEL
        yield FaultFinding(key if config.has(*key) else paths.ROOT, behavior)


WITHOUT_AUTOTP = 'set "autotp_size" to 1 and use ZeRO stage 3'


def _partitioned_family(config: Context) -> str | None:
    """Return the family of the model if AutoTP partitions it without layer specs."""
    shape, size = config.facts.architecture, config.in_force(paths.TENSOR_PARALLEL, "autotp_size")
    by_specs = config.has("tensor_parallel", "partition_config")
    return None if shape is None or size <= 1 or by_specs else shape.family


@fault(
    "DSC874",
    f"{STYLES_REQUIRED_SINCE} to 0.19.8",
    "deepspeedai/DeepSpeed#8290",
    f"write tensor_parallel.partition_config, or {WITHOUT_AUTOTP}",
    effect=Effect.REFUSED,
    stops="engine ValueError",
    triggers="tensor_parallel",
    evidence=Evidence.ENDS,
)
def plan_refused_by_autotp(config: Context) -> Iterator[FaultFinding]:
    """AutoTP refuses the tensor-parallel plan of the model

    Since 0.19.6 DeepSpeed rejects the `base_model_tp_plan` of a transformers model if it has a
    style that AutoTP does not convert: 79 of the 144 families of transformers 5.23 with a plan,
    among them Mixtral, Qwen3 MoE, DeepSeek V2 and V3, Phi-3, OLMo 2 and GLM. Earlier releases
    partition them by the names of their layers. A `partition_config` replaces the plan.

    with: model="mixtral-8x7b", gpus=8
    bad: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2}}
    good: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 1}}
    """
    styles = unconverted_styles(_partitioned_family(config))
    if styles:
        behavior = f"refuse {_name(config)} with AutoTP: its plan has the styles {styles}"
        yield FaultFinding(paths.AUTOTP_SIZE, behavior)


@fault(
    "DSC876",
    f"{AUTOTP_SINCE} to 0.19.8",
    "deepspeedai/DeepSpeed#3711",
    f"write tensor_parallel.partition_config, or {WITHOUT_AUTOTP}",
    effect=Effect.REFUSED,
    stops="engine AssertionError",
    triggers="tensor_parallel",
    evidence=Evidence.ENDS,
)
def model_without_plan(config: Context) -> Iterator[FaultFinding]:
    """AutoTP does not support the model

    GPT-2, XLNet, LED and five other families have no tensor-parallel plan, and AutoTP refuses to
    partition them by the names of their layers.

    with: model="gpt2", gpus=8
    bad: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2}}
    good: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 1}}
    """
    if _partitioned_family(config) in NO_AUTOTP:
        yield FaultFinding(paths.AUTOTP_SIZE, f"refuse {_name(config)} with AutoTP: it has no plan")


@fault(
    "DSC875",
    "0.16.4 to 0.19.8",
    "deepspeedai/DeepSpeed#7298",
    "multiply train_batch_size by autotp_size, or write train_micro_batch_size_per_gpu instead",
    triggers="tensor_parallel",
    evidence=Evidence.ENDS,
)
def batch_counts_tensor_ranks(config: Context) -> Iterator[FaultFinding]:
    """`train_batch_size` counts tensor-parallel ranks

    DeepSpeed checks that `train_batch_size` is micro batch x accumulation x all ranks, but the
    ranks of a tensor-parallel group share their samples. With `autotp_size` N, a step trains on 1/N
    of `train_batch_size` samples. Not reported beside a micro batch, which is taken as written.
    Under sequence parallelism the ranks of a group are not counted.

    with: gpus=8
    bad: {"train_batch_size": 64, "tensor_parallel": {"autotp_size": 2}}
    good: {"train_micro_batch_size_per_gpu": 8, "tensor_parallel": {"autotp_size": 2}}
    """
    size = config.in_force(paths.TENSOR_PARALLEL, "autotp_size")
    total = config.number("train_batch_size")
    if total is not None and size > 1 and config.number("train_micro_batch_size_per_gpu") is None:
        behavior = (
            f"count all ranks in train_batch_size, although {size} share each sample: a step "
            f"trains on {total / size:g} samples"
        )
        yield FaultFinding(paths.GLOBAL_BATCH, behavior)
