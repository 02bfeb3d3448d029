"""The two passes of transformers' HfTrainerDeepSpeedConfig.

*process* runs when TrainingArguments is built, *finalize* when the model and the number of
steps are known. Mismatches are collected and raised once, at the end of finalize.
"""

from dataclasses import dataclass
from typing import Any

from dsconfig.facts import ModelTree
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.behaviour import hidden_size
from dsconfig.runtimes.behaviour.nodes import is_auto, node, stage_of, value
from dsconfig.runtimes.behaviour.outcome import Outcome, Stops
from dsconfig.runtimes.behaviour.training_arguments import Arguments

MIN_LR, MAX_LR = "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr"
WARMUP = "scheduler.params.warmup_num_steps"
TOTAL = "scheduler.params.total_num_steps"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """``written`` in the config, ``wanted`` by an argument of TrainingArguments."""

    path: str
    written: Any
    argument: str
    wanted: Any

    def __str__(self) -> str:
        return f"{self.path}={self.written!r} against {self.argument}={self.wanted!r}"


class TrainerFill:
    """One HfTrainerDeepSpeedConfig on one config, which is changed in place."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.config = outcome.config
        self.stage: Any = stage_of(self.config)
        self.mismatches: dict[str, Mismatch] = {}

    def process(self, args: Arguments, *, batch_search: bool = False) -> None:
        """First pass: everything that the arguments alone settle."""
        micro, steps = args["per_device_train_batch_size"], args["gradient_accumulation_steps"]
        product = args.world_size * micro * steps
        strict = not batch_search
        self._fill("train_micro_batch_size_per_gpu", micro, "per_device_train_batch_size", strict)
        self._fill("gradient_accumulation_steps", steps, "gradient_accumulation_steps")
        self._fill("train_batch_size", product, "train_batch_size (calculated)", strict)
        self._fill("gradient_clipping", args["max_grad_norm"], "max_grad_norm")
        self._fill("optimizer.params.lr", args["learning_rate"], "learning_rate")
        betas = [args["adam_beta1"], args["adam_beta2"]]
        self._fill("optimizer.params.betas", betas, "adam_beta1+adam_beta2")
        self._fill("optimizer.params.eps", args["adam_epsilon"], "adam_epsilon")
        self._fill("optimizer.params.weight_decay", args["weight_decay"], "weight_decay")
        self._fill(MIN_LR, 0, "", must_match=False)
        self._fill(MAX_LR, args["learning_rate"], "learning_rate")
        if args["save_on_each_node"]:
            self.config["checkpoint"] = self.config.get("checkpoint", {})
            self.config["checkpoint"]["use_node_local_storage"] = args["save_on_each_node"]
        for dtype in ("fp16", "bf16"):
            self._fill(f"{dtype}.enabled", args.switch(dtype), f"{dtype}|{dtype}_full_eval")

    def finalize(self, args: Arguments, model: ModelTree | None) -> None:
        """Second pass: bucket sizes and the schedule; then all mismatches at once."""
        self._buckets(model)
        if value(self.config, TOTAL) is not None:
            self._fill(TOTAL, args.total(TOTAL), "num_training_steps (calculated)")
        if value(self.config, WARMUP) is not None:
            self._fill(WARMUP, max(1, args.warmup(WARMUP)), "warmup_steps")
        if self.mismatches:
            told = "; ".join(map(str, self.mismatches.values()))
            said = f"values that mismatch TrainingArguments: {told}"
            raise Stops("ValueError", said, *self.mismatches, late=True)

    def _buckets(self, model: ModelTree | None) -> None:
        open_keys = [key for key in hidden_size.KEYS if is_auto(self.config, key)]
        if not open_keys:
            return
        width = hidden_size.for_transformers(model, open_keys)
        filled = hidden_size.sizes(width)
        for key, size in zip(hidden_size.KEYS, filled, strict=True):
            if key.endswith("reduce_bucket_size") or self.stage == 3:
                self._fill(key, size, "", must_match=False)
                self.outcome.wrote(key, "by the model's hidden_size", hidden_size=width)

    def _fill(self, path: str, wanted: Any, argument: str, must_match: bool = True) -> None:
        place, name = node(self.config, path)
        if place is None:
            return
        written = value(self.config, path)
        if written == AUTO:
            place[name] = wanted
            said = f"{argument} of TrainingArguments" if argument else "a constant of the Trainer"
            self.outcome.wrote(path, said)
        elif must_match and written is not None and written != wanted:
            self.mismatches[path] = Mismatch(path, written, argument, wanted)
