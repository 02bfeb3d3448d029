"""Rules for bugs of transformers and TRL releases whose weights are wrong or empty at stage 3.

DSC867, DSC868 and DSC870 were seen on CPU: small models were saved with the names of published
checkpoints, loaded under ``HfDeepSpeedConfig`` by each release, and compared. The ranges of DSC869
were read in TRL's sources.
"""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.fault import Evidence, FaultFinding, fault
from dsconfig.checks.registry import MODEL
from dsconfig.checks.rule import reads_training_arguments
from dsconfig.report import Effect
from dsconfig.schema.paths import ZERO
from dsconfig.schema.version import Version

CONVERTED = frozenset(
    (
        *("deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe"),
        *("flex_olmo", "glm4_moe", "glm4_moe_lite", "gpt_oss"),
        *("hunyuan_v1_moe", "lfm2_moe", "longcat_flash", "minimax"),
        *("minimax_m2", "mixtral", "olmoe", "phimoe"),
        *("qwen2_moe", "qwen3_moe", "qwen3_next", "solar_open"),
    )
)
"""Families whose checkpoints transformers 5.0 converts while loading: experts become one tensor
(``conversion_mapping.py``)."""


@fault(
    "DSC867",
    "5.0.0 to 5.1.0",
    "deepspeedai/DeepSpeed#7848, huggingface/transformers#43964",
    "use transformers 5.2.0 or later",
    triggers=MODEL,
    program="transformers",
    applies_to=reads_training_arguments,
    evidence=Evidence.RUNS,
)
def experts_not_loaded(config: Context) -> Iterator[FaultFinding]:
    """transformers 5.0.0 and 5.1.0 do not load a mixture of experts at stage 3

    They merge the experts of a checkpoint into one tensor per layer. With `zero.Init`, 5.0.0
    discards the merged checkpoint: its report lists the weights as `MISSING`, and training starts
    from random values. 5.1.0 raises `RuntimeError: Failed to apply weight conversion`. The model is
    set by `--model`.

    with: runtime="transformers", releases={"transformers": "5.0.0"}, model="mixtral-8x7b"
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    """
    shape = config.facts.architecture
    if config.stage != 3 or shape is None or shape.family not in CONVERTED:
        return
    discards = Version.parse(config.facts.releases["transformers"]) < Version(5, 1, 0)
    result = "5.0.0 trains random weights" if discards else "5.1.0 raises a RuntimeError"
    behavior = "do not load the checkpoint of a mixture of experts at stage 3"
    yield FaultFinding(ZERO, f"{behavior}: {result}")


def _has_type(config: Context, *types: str) -> bool:
    """Return whether the config.json of the model is of one of these types."""
    model = config.facts.named_model
    return model is not None and (model.config or {}).get("model_type") in types


@fault(
    "DSC868",
    "5.4.0 to 5.5.4",
    "huggingface/transformers#45313",
    "use transformers 5.6.0 or later, or stage 2",
    triggers=MODEL,
    program="transformers",
    applies_to=reads_training_arguments,
    evidence=Evidence.RUNS,
)
def qwen3_5_not_loaded(config: Context) -> Iterator[FaultFinding]:
    """transformers 5.4.0 to 5.5.4 do not load the language model of Qwen3.5 at stage 3

    With `zero.Init` they rename its weights for the class without images, and then do not find
    them: the report lists `model.language_model...` as `MISSING`, and training starts from random
    values. The model's `config.json` is set by `--model`.

    with: runtime="transformers", releases={"transformers": "5.5.4"}, model_config={"model_type":
        "qwen3_5", "text_config": {"model_type": "qwen3_5_text", "hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 16, "vocab_size": 248320,
        "intermediate_size": 12288}, "vision_config": {}}
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    """
    if config.stage == 3 and _has_type(config, "qwen3_5", "qwen3_5_moe"):
        yield FaultFinding(ZERO, "train Qwen3.5's language model from random weights at stage 3")


@fault(
    "DSC870",
    "5.5.0 to 5.5.4",
    "huggingface/transformers#45397, huggingface/transformers#45402",
    "use transformers 5.6.0 or later, or stage 2",
    triggers=MODEL,
    program="transformers",
    applies_to=reads_training_arguments,
    evidence=Evidence.RUNS,
)
def gemma4_ranges_not_loaded(config: Context) -> Iterator[FaultFinding]:
    """transformers 5.5 does not load the clipping ranges of Gemma 4's encoders at stage 3

    They are buffers, which the loader for `zero.Init` skips: the report lists `input_max` and
    similar as `MISSING`, and the encoders clip nothing. The model's `config.json` is set by
    `--model`.

    with: runtime="transformers", releases={"transformers": "5.5.4"}, model_config={"model_type":
        "gemma4", "text_config": {"model_type": "gemma4_text", "hidden_size": 1536,
        "num_hidden_layers": 35, "num_attention_heads": 8, "vocab_size": 262144,
        "intermediate_size": 6144}, "vision_config": {}}
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    """
    if config.stage == 3 and _has_type(config, "gemma4"):
        yield FaultFinding(ZERO, "train Gemma 4 without the clipping ranges of its encoders")


GRPO_FIXED = Version(1, 6, 0)
"""First release of TRL whose GRPOTrainer gathers the head for Liger's loss."""
LOSS_BY_KERNEL_FLAG = Version(0, 26, 0)
"""From this release on ``use_liger_kernel`` also selects the loss, before it ``use_liger_loss``."""
GRPO = frozenset({"num_generations", "num_iterations", "scale_rewards", "reward_weights"})
PREFERENCE = frozenset(
    {"precompute_ref_log_probs", "rpo_alpha", "desirable_weight", "undesirable_weight"}
)
"""Arguments of DPO and KTO that no other trainer of TRL has."""


@fault(
    "DSC869",
    "0.17.0 to 1.8.0",
    "huggingface/trl#3368, huggingface/trl#5891, huggingface/trl#6372",
    "use TRL 1.9.0 or later, or stage 2, or disable Liger",
    effect=Effect.REFUSED,
    stops="step RuntimeError",
    triggers="trl",
    program="trl",
    applies_to=reads_training_arguments,
    evidence=Evidence.ENDS,
    from_source="needs TRL releases that are not tested",
)
def liger_loss_on_sharded_head(config: Context) -> Iterator[FaultFinding]:
    """TRL 0.17.0 to 1.8.0 fail in Liger's chunked losses at stage 3

    GRPO (up to 1.5.1), DPO and KTO pass `lm_head.weight` to Liger instead of calling the module, so
    DeepSpeed does not gather it: `size mismatch, got input (...), vec (0)`. A head that is tied to
    the embedding may still be gathered. SFT is not affected.

    with: runtime="transformers", releases={"trl": "1.5.1"}, model="llama-2-7b", training_args={
        "use_liger_kernel": True, "num_generations": 8}
    bad: {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 3}}
    good: {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}
    """
    release = Version.parse(config.facts.releases["trl"])
    arguments = {**(config.document.container or {}), **config.facts.arguments}
    is_grpo = not GRPO.isdisjoint(arguments)
    chunked = arguments.get("use_liger_loss") is True
    if release >= LOSS_BY_KERNEL_FLAG and (is_grpo or not PREFERENCE.isdisjoint(arguments)):
        chunked |= arguments.get("use_liger_kernel") is True
    if config.stage == 3 and chunked and not (is_grpo and release >= GRPO_FIXED):
        shape = config.facts.architecture
        untied = shape is not None and not shape.tied_embeddings
        behavior = "fail in Liger's chunked loss at stage 3, where the output head is empty"
        yield FaultFinding(ZERO, behavior, certain=untied)
