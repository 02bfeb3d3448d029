"""Starter configs: the result of the search, with reasons."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from dsconfig import api, examination
from dsconfig.batch import MICRO
from dsconfig.checks.agreement import Disagreement, disagreements
from dsconfig.cost import degree_search, estimator, search_space
from dsconfig.cost.activations import Recompute
from dsconfig.cost.choices import RECOMPUTED, recomputation_edits, recomputing_selectively
from dsconfig.facts import Facts
from dsconfig.facts.adapters import ALL_LINEAR
from dsconfig.facts.base_weights import BaseWeights
from dsconfig.facts.training import NAMES_OF
from dsconfig.project.errors import UsageError, usage
from dsconfig.project.program_file import for_program
from dsconfig.report import writers
from dsconfig.runtimes import capabilities
from dsconfig.runtimes.base import (
    ADAPTERS_BY_PEFT,
    BASE_WEIGHTS,
    RECOMPUTATION,
    Instruction,
    Runtime,
    format_instructions,
    runtime_of,
)
from dsconfig.schema import AUTO, find, paths
from dsconfig.schema.paths import KeyPath
from dsconfig.source.ignores import REMARKS, SECTION
from dsconfig.source.plugin_settings import PATH_OF_SETTING, block_of, mixed_precision
from dsconfig.source.pointer import ABSENT, copied, put, value_at, walk


@dataclass(frozen=True, slots=True)
class Starter:
    """A config with the reason for each value, by pointer; ``title`` describes the run."""

    title: str
    config: Mapping[str, Any]
    reasons: Mapping[str, str]
    set_elsewhere: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values, by pointer, that the program takes from elsewhere than the config."""
    steps: tuple[Instruction, ...] = ()
    """Other settings that the run requires outside the config."""
    host_bytes: int = 0
    """Host memory per node that the run requires; 0 if it was not estimated."""
    estimate_flags: tuple[str, ...] = ()
    """Flags of ``estimate`` for the settings of this run that are not in the config."""

    def for_program(self, program: Runtime) -> "Starter":
        """Return the starter with "auto" for values that the program fills in."""
        file = for_program(program, self.config, self.set_elsewhere)
        reasons = {at: why for at, why in self.reasons.items() if at not in file.opened}
        reasons |= dict.fromkeys(file.opened, f"filled in by {program.name}")
        steps = (*self.steps, *file.steps)
        title = f"{self.title}; set {format_instructions(steps)}" if steps else self.title
        flags, micro = self.estimate_flags, self.config.get(MICRO)
        if f"/{MICRO}" in file.opened:
            flags = (*flags, "--micro-batch", str(micro))
        return replace(self, title=title, config=file.config, reasons=reasons, estimate_flags=flags)


def skeleton(learning_rate: float, facts: Facts) -> dict[str, Any]:
    """Return a config with "auto" for all values that depend on model and hardware."""
    training = facts.training
    batch: dict[str, Any] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": AUTO if training and training.global_batch_size else 1,
    }
    return batch | {
        "gradient_clipping": 1.0,
        "bf16": {"enabled": AUTO},
        "fp16": {"enabled": AUTO},
        paths.ZERO.name: {
            "stage": AUTO,
            "offload_optimizer": {"device": AUTO},
            "offload_param": {"device": AUTO},
            "overlap_comm": AUTO,
            "reduce_bucket_size": AUTO,
            "allgather_bucket_size": AUTO,
            "stage3_prefetch_bucket_size": AUTO,
            "stage3_param_persistence_threshold": AUTO,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "optimizer": _optimizer(learning_rate),
        "scheduler": _scheduler(learning_rate),
        "steps_per_print": 100,
    }


def with_explicit_settings(config: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """Return the config with the values that TrainingArguments and accelerate config set.

    Blocks whose type they choose are left to the program, which creates optimizer and scheduler.
    """
    config = dict(copied(config))
    if "optim" in facts.arguments:
        config.pop("optimizer", None)
    if not facts.arguments.keys().isdisjoint(("optim", "lr_scheduler_type")):
        config.pop("scheduler", None)  # accelerate accepts it only with an optimizer block
    for path, names in NAMES_OF.items():
        if (
            len(names) == 1
            and names[0] in facts.arguments
            and value_at(config, path) not in (ABSENT, AUTO)
        ):
            put(config, path, facts.arguments[names[0]])
    settings = block_of(facts.launch)
    for name, path in PATH_OF_SETTING.items():
        if settings.get(name) is not None:
            put(config, path, settings[name])
    mixed = mixed_precision(facts.launch)
    for block in ("bf16", "fp16") if mixed is not None else ():
        put(config, paths.HALF_PRECISIONS[block], mixed == block)
    for conflict in list(disagreements(config, facts)):
        if conflict.left is None:
            put(config, conflict.path, _value_of(conflict))
    return config


def _value_of(conflict: Disagreement) -> Any:
    """Return the value of the config key that agrees with the other side."""
    if conflict.path not in paths.HALF_PRECISIONS.values():
        return conflict.right.value
    block = conflict.path.parent.name
    if conflict.right.key == "mixed_precision":
        return conflict.right.value == block
    return conflict.right.value if conflict.right.key.startswith(block) else False


def _optimizer(learning_rate: float) -> dict[str, Any]:
    """Return an AdamW block with explicit default arguments."""
    params: dict[str, Any] = {"lr": learning_rate}
    for name in ("betas", "eps", "weight_decay"):
        known = find(("optimizer", "params", name), of_type="AdamW")
        params[name] = known.default if known else None
    return {"type": "AdamW", "params": params}


def _scheduler(learning_rate: float) -> dict[str, Any]:
    params = {"warmup_min_lr": 0, "warmup_max_lr": learning_rate, "warmup_num_steps": 1000}
    return {"type": "WarmupLR", "params": params}


COMMON_REASONS = {
    paths.GRADIENT_CLIPPING.pointer: "explicit because the default changed in DeepSpeed 0.19.3",
    paths.OPTIMIZER.pointer: "created by the engine unless the script passes an optimizer",
    paths.LEARNING_RATE.pointer: "keep equal to scheduler.params.warmup_max_lr",
    paths.SCHEDULER.pointer: "linear warmup, then constant",
    paths.WARMUP_STEPS.pointer: "at most a tenth of the run",
    RECOMPUTATION: "required to fit, or faster, with activation checkpointing",
    paths.STEPS_PER_PRINT.pointer: "optimizer steps between progress lines",
    paths.GATHERED_ON_SAVE.pointer: "required to save full weights at stage 3",
}


class Adapters(NamedTuple):
    """LoRA as specified: rank and names of the adapted modules (all linear layers if empty)."""

    rank: int
    targets: str = ""

    @property
    def step(self) -> Instruction:
        """The code that adds them to the model."""
        step = ADAPTERS_BY_PEFT._replace(text=ADAPTERS_BY_PEFT.text.format(self.rank))
        names = [name.strip() for name in self.targets.split(",") if name.strip()]
        if not names or names == [ALL_LINEAR]:
            return step
        return step._replace(text=step.text.replace(json.dumps(ALL_LINEAR), json.dumps(names)))


def chosen(
    facts: Facts,
    learning_rate: float,
    program: Runtime,
    *,
    for_all: bool = False,
    adapters: Adapters | None = None,
) -> Starter:
    """Return the fastest config that fits, including recomputation.

    ``for_all``: in every program, not only ``program``. Raises UsageError if nothing fits or a fact
    is missing.
    """

    config = with_explicit_settings(skeleton(learning_rate, facts), facts)
    selective = program.recomputes_selectively and not for_all
    with usage():
        fastest = degree_search.of_facts(
            facts, program, runtime="dsengine", selective=selective
        ).chosen.result.chosen
    settings = fastest.settings if fastest is not None else dict[str, Any]()
    if fastest is not None:
        facts = replace(facts, degrees=fastest.degrees)
    recompute = fastest.choice.recompute if fastest is not None else Recompute.NONE
    if recompute is Recompute.FULL:
        # The resolution below is for dsengine, which reads this block.
        config["activation_checkpointing"] = dict(RECOMPUTED)
    given = recomputing_selectively(facts) if recompute is Recompute.SELECTIVE else facts
    engine = runtime_of("dsengine")
    resolution = examination.resolution(api.read(config), given, engine)
    if not resolution.ok or resolution.effective is None:
        finding = resolution.diagnostics[0]
        raise UsageError(f"{finding.message}; {finding.help}" if finding.help else finding.message)
    reasons = COMMON_REASONS | {entry.pointer: entry.rule for entry in resolution.ledger}
    if facts.training and facts.training.global_batch_size:
        batch = f"{facts.training.global_batch_size} samples per step on {facts.world_size} ranks"
        reasons[paths.ACCUMULATION.pointer] = batch
    config = search_space.with_settings(_without_inert_keys(resolution.config), settings)
    reasons |= dict.fromkeys(capabilities.keys_in(settings), "required to fit, or faster")
    set_elsewhere = recomputation_edits(recompute)
    flags = ["--recompute", recompute.value] if set_elsewhere else []
    if recompute is Recompute.FULL:
        if program.recomputes_from_config:
            set_elsewhere, flags = {}, []
        else:
            del config["activation_checkpointing"]
    if facts.base_weights == BaseWeights.FOUR_BIT:
        set_elsewhere[BASE_WEIGHTS] = facts.base_weights
    elsewhere = capabilities.outside(settings)
    for axis, pointer in capabilities.POINTERS.items():
        if pointer in elsewhere and not capabilities.support(program, axis).keys:
            flags += [f"--{axis}-parallel", str(getattr(facts.degrees, axis))]
    set_elsewhere |= elsewhere
    if for_all:
        host_bytes = 0 if fastest is None else fastest.host_bytes
    else:
        estimate = estimator.estimate(resolution.effective, given, runtime=program)
        host_bytes = estimate.options[0].host.peak_bytes
    return Starter(
        _title(facts, adapters),
        config,
        reasons,
        set_elsewhere,
        steps=(adapters.step,) if adapters else (),
        host_bytes=host_bytes,
        estimate_flags=tuple(flags),
    )


def _title(facts: Facts, adapters: Adapters | None) -> str:
    """Return ``llama-2-7b with LoRA (rank 16) on 2 x RTX-4090, 2048 tokens per sample``."""
    model = facts.model.name if facts.model else "a model"
    if adapters:
        model += f" with LoRA (rank {adapters.rank})"
    elif facts.model and facts.model.trainable != facts.model.parameters:
        model += f", {facts.model.trainable:.3g} trainable parameters"
    if facts.base_weights:
        model += f", {BaseWeights(facts.base_weights).label}"
    device = facts.device.name if facts.device else "an unknown GPU"
    tokens = facts.training.sequence_length if facts.training else None
    return f"{model} on {facts.world_size} x {device}, {tokens or 0:,} tokens per sample"


def conservative(learning_rate: float, facts: Facts) -> Starter:
    """Return a config for unknown hardware: stage 2, bf16 and micro batch 1 unless specified."""
    training = facts.training
    precision = (training.precision if training else None) or "bf16"
    config: dict[str, Any] = {
        MICRO: (training.micro_batch_size if training else None) or 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
        paths.ZERO.name: {
            "stage": 2,
            "overlap_comm": True,
            "reduce_bucket_size": 200_000_000,
            "allgather_bucket_size": 200_000_000,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "optimizer": _optimizer(learning_rate),
        "scheduler": _scheduler(learning_rate),
        "steps_per_print": 100,
    }
    config = with_explicit_settings(config, facts)
    config[paths.ZERO.name] = _with_effect(config[paths.ZERO.name])
    reasons = COMMON_REASONS | {
        paths.MICRO_BATCH.pointer: "increase until GPU memory is used",
        paths.BF16_ENABLED.pointer: "GPUs before Ampere do not support bf16: use fp16",
        paths.STAGE.pointer: "shards optimizer states and gradients; 3 also shards parameters",
        paths.REDUCE_BUCKET.pointer: "3.6 GB for both buckets by the 4.5x rule",
    }
    title = "conservative values; specify --model, --gpus and --device for better ones"
    return Starter(title, config, reasons)


def _without_inert_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config without inert keys and without the global batch.

    Inert: the other precision, offload to none, keys of other stages. Without the global batch the
    config runs at any world size. Accumulation stays, because accelerate's default is 1.
    """
    kept = {name: value for name, value in config.items() if value != {"enabled": False}}
    del kept["train_batch_size"]
    kept[paths.ZERO.name] = _with_effect(kept.get(paths.ZERO.name, {}))
    return kept


def _with_effect(zero: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a zero_optimization block that have an effect at its stage."""
    stage = zero.get("stage")
    if stage == 0:
        return {"stage": 0}
    return {
        name: value
        for name, value in zero.items()
        if value != {"device": "none"}
        and not (name == "allgather_bucket_size" if stage == 3 else name.startswith("stage3_"))
    }


INDENT = "  "


def render(starter: Starter, *, hjson: bool) -> str:
    """Return the text of the file.

    With ``hjson`` reasons are // comments, which transformers and accelerate do not support; else
    they are in the ``$dsconfig`` block, which all programs ignore.
    """
    if not hjson:
        config = {SECTION: _remarks(starter), **starter.config}
        return "\n".join(("{", *_entries(config, paths.ROOT, {}), "}")) + "\n"
    lines = [
        "{",
        INDENT + writers.comment(f"{starter.title}.", "//"),
        f"{INDENT}// See `dsconfig explain KEY` for the documentation of a key.",
        f"{INDENT}// For deepspeed and dsengine; transformers and accelerate reject comments.",
        "",
        *_entries(starter.config, paths.ROOT, starter.reasons),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _remarks(starter: Starter) -> dict[str, Any]:
    """Return the title and the reason for each value, by dotted path."""
    remarks: dict[str, str] = {"this file": f"{starter.title}; see `dsconfig explain KEY`"}
    for path, value in walk(starter.config):
        reason = starter.reasons.get(path.pointer)
        if reason and reason not in remarks.values():
            remarks[AUTO if value == AUTO else str(path)] = reason
    return {REMARKS: remarks}


def _entries(block: Mapping[str, Any], path: KeyPath, reasons: Mapping[str, str]) -> Iterator[str]:
    indent = INDENT * (len(path) + 1)
    last_reason = ""
    for position, (name, value) in enumerate(block.items()):
        comma = "," if position + 1 < len(block) else ""
        reason = reasons.get((path / name).pointer, "")
        if reason and reason != last_reason:
            yield indent + writers.comment(reason, "//")
        last_reason = reason
        if isinstance(value, Mapping):
            yield f"{indent}{json.dumps(name)}: {{"
            yield from _entries(cast(Mapping[str, Any], value), path / name, reasons)
            yield f"{indent}}}{comma}"
        else:
            yield f"{indent}{json.dumps(name)}: {json.dumps(value)}{comma}"
