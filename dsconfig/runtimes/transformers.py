"""The Trainer of transformers, which fills in some "auto" values before DeepSpeed."""

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import (
    ARGUMENTS,
    IN_THE_SCRIPT,
    RECOMPUTATION,
    AutoHandling,
    Instruction,
    Overrides,
    Runtime,
)
from dsconfig.runtimes.deepspeed import auto_handling
from dsconfig.schema.auto import BY_ACCELERATE, BY_TRANSFORMERS
from dsconfig.schema.version import NEWEST, Version

with lazy_imports():
    from dsconfig.runtimes.behavior import replay, standalone, trainer

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.behavior.replay import Replay


class Transformers(Runtime):
    """``entry``: "config" for HfTrainerDeepSpeedConfig only, "trainer" for the full Trainer.

    ``through_accelerate`` is true if the config comes from ``accelerate launch`` instead of
    ``TrainingArguments.deepspeed``; ``environment`` are the variables it sets, and ``config_file``
    is false if it has no config file. Raises ValueError for an unknown ``entry``.
    """

    name = "transformers"
    release: ClassVar[str] = "5.23"
    # The Trainer calls accelerate, which fills in more and refuses every other "auto".
    auto_fills: ClassVar[Mapping[str, str]] = {**BY_ACCELERATE, **BY_TRANSFORMERS}
    reads_hjson: ClassVar[bool] = False
    set_elsewhere: ClassVar[Mapping[str, Instruction]] = {
        RECOMPUTATION: Instruction(ARGUMENTS, "gradient_checkpointing=True"),
        **IN_THE_SCRIPT,
        "/train_micro_batch_size_per_gpu": Instruction(ARGUMENTS, "per_device_train_batch_size={}"),
        "/gradient_accumulation_steps": Instruction(ARGUMENTS, "gradient_accumulation_steps={}"),
        "/optimizer/params/lr": Instruction(ARGUMENTS, "learning_rate={}"),
        "/bf16/enabled": Instruction(ARGUMENTS, "bf16={}"),
        "/fp16/enabled": Instruction(ARGUMENTS, "fp16={}"),
    }
    supplies_optimizer: ClassVar[bool] = True
    eight_bit_optimizer: ClassVar[Instruction | None] = Instruction(
        ARGUMENTS, 'optim="adamw_bnb_8bit"'
    )
    precedence: ClassVar[tuple[str, ...]] = ("config", "training", "launch")
    compares_arguments: ClassVar[bool] = True

    def __init__(
        self,
        version: Version = NEWEST,
        *,
        entry: str = "trainer",
        through_accelerate: bool = False,
        config_file: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if entry not in ("config", "trainer"):
            raise ValueError(f'entry={entry!r}: write "config" or "trainer"')
        super().__init__(version=version)
        self.entry = entry
        self.through_accelerate = through_accelerate
        self.config_file = config_file
        self.environment = environment or {}
        self.overrides: Overrides = ()

    @property
    def requires_zero_block(self) -> bool:
        return self.entry == "trainer"

    def under_accelerate_launch(self, *, config_file: bool, overrides: Overrides = ()) -> Self:
        other = copy(self)
        other.config_file, other.through_accelerate = config_file, True
        other.overrides = overrides
        return other

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoHandling:
        if self.entry == "config" and ".".join(path) not in BY_TRANSFORMERS:
            return auto_handling(path, config, self.version)
        return super().on_auto(path, config)

    def fill(self, config: dict[str, Any], facts: "Facts") -> "Replay":
        if self.entry == "config":
            return replay.run_replay(config, trainer.config_alone, facts)
        filled = replay.run_replay(config, trainer.trainer, facts, self)
        return standalone.then_deepspeed(filled, facts, self.version)


transformers = Transformers  # looked up by program name
