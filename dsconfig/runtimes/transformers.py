"""The Trainer of transformers, which fills some "auto" and hands the rest to DeepSpeed."""

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dsconfig.lazily import lazily
from dsconfig.runtimes.base import (
    ARGUMENTS,
    RECOMPUTATION,
    SELECTIVE_RECOMPUTATION,
    SELECTIVELY_BY_ARGUMENTS,
    AutoFate,
    Runtime,
    Step,
)
from dsconfig.runtimes.deepspeed import fate_of_auto
from dsconfig.schema.auto import BY_ACCELERATE, BY_TRANSFORMERS
from dsconfig.schema.version import NEWEST, Version

with lazily():
    from dsconfig.runtimes.behaviour import alone, replay, trainer

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.behaviour.replay import Replay


class Transformers(Runtime):
    """``entry``: "config" for HfTrainerDeepSpeedConfig alone, "trainer" for the whole trainer.

    ``through_accelerate`` is true where the config comes through ``accelerate launch`` instead of
    ``TrainingArguments.deepspeed``; ``environment`` holds the variables it sets, and
    ``config_file`` is false where it names no file. Raises ValueError for an unknown ``entry``.
    """

    name = "transformers"
    release: ClassVar[str] = "5.23"
    # The Trainer goes on through accelerate, which fills more and stops at every other "auto".
    filled_with: ClassVar[Mapping[str, str]] = {**BY_ACCELERATE, **BY_TRANSFORMERS}
    reads_hjson: ClassVar[bool] = False
    elsewhere: ClassVar[Mapping[str, Step]] = {
        RECOMPUTATION: Step(ARGUMENTS, "gradient_checkpointing=True"),
        SELECTIVE_RECOMPUTATION: SELECTIVELY_BY_ARGUMENTS,
        "/train_micro_batch_size_per_gpu": Step(ARGUMENTS, "per_device_train_batch_size={}"),
        "/gradient_accumulation_steps": Step(ARGUMENTS, "gradient_accumulation_steps={}"),
        "/optimizer/params/lr": Step(ARGUMENTS, "learning_rate={}"),
        "/bf16/enabled": Step(ARGUMENTS, "bf16={}"),
        "/fp16/enabled": Step(ARGUMENTS, "fp16={}"),
    }
    brings_optimizer: ClassVar[bool] = True
    believes: ClassVar[tuple[str, ...]] = ("config", "training", "launch")
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

    @property
    def wants_zero_block(self) -> bool:
        return self.entry == "trainer"

    def launched(self, *, config_file: bool) -> Self:
        other = copy(self)
        other.config_file, other.through_accelerate = config_file, True
        return other

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoFate:
        if self.entry == "config" and ".".join(path) not in BY_TRANSFORMERS:
            return fate_of_auto(path, config, self.version)
        return super().on_auto(path, config)

    def fill(self, config: dict[str, Any], facts: "Facts") -> "Replay":
        if self.entry == "config":
            return replay.replayed(config, trainer.config_alone, facts)
        filled = replay.replayed(config, trainer.trainer, facts, self)
        return alone.handed_on(filled, facts, self.version)


transformers = Transformers  # by the name of the program
