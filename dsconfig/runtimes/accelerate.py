"""accelerate, which fills in some "auto" values and refuses all others."""

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import (
    BY_THE_MODEL,
    IN_THE_SCRIPT,
    RECOMPUTATION,
    SCRIPT,
    Instruction,
    Overrides,
    Runtime,
)
from dsconfig.schema.auto import BY_ACCELERATE
from dsconfig.schema.version import NEWEST, Version

with lazy_imports():
    from dsconfig.runtimes.behavior import prepare, replay, standalone

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.behavior.replay import Replay


class Accelerate(Runtime):
    """``accelerate.prepare`` with its arguments; unspecified ones are chosen to fit the config.

    ``plugin`` are arguments of DeepSpeedPlugin, ``environment`` the variables it reads;
    ``config_file`` is false without a config file. ``optimizer`` and ``scheduler`` are ``dummy``,
    ``torch`` or ``none``; ``batch_sizes`` are those of the data loaders.
    """

    name = "accelerate"
    release: ClassVar[str] = "1.15"
    auto_fills: ClassVar[Mapping[str, str]] = BY_ACCELERATE
    reads_hjson: ClassVar[bool] = False
    set_elsewhere: ClassVar[Mapping[str, Instruction]] = {
        RECOMPUTATION: BY_THE_MODEL,
        **IN_THE_SCRIPT,
        "/train_micro_batch_size_per_gpu": Instruction(SCRIPT, "DataLoader(..., batch_size={})"),
        "/gradient_accumulation_steps": Instruction(
            SCRIPT, "Accelerator(gradient_accumulation_steps={})"
        ),
        "/optimizer/params/lr": Instruction(SCRIPT, "DummyOptim(..., lr={})"),
        "/bf16/enabled": Instruction("the accelerate config", "mixed_precision: bf16"),
        "/fp16/enabled": Instruction("the accelerate config", "mixed_precision: fp16"),
    }
    supplies_optimizer: ClassVar[bool] = True
    precedence: ClassVar[tuple[str, ...]] = ("config", "launch", "training")

    def __init__(
        self,
        version: Version = NEWEST,
        *,
        config_file: bool = True,
        plugin: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        mixed_precision: str | None = None,
        optimizer: str | None = None,
        scheduler: str | None = None,
        batch_sizes: tuple[int | None, ...] | None = None,
        split_batches: bool = False,
    ) -> None:
        super().__init__(version=version)
        self.config_file = config_file
        self.plugin = plugin or {}
        self.environment = environment or {}
        self.mixed_precision = mixed_precision
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.batch_sizes = batch_sizes
        self.split_batches = split_batches
        self.overrides: Overrides = ()

    @property
    def requires_zero_block(self) -> bool:
        return True

    def under_accelerate_launch(self, *, config_file: bool, overrides: Overrides = ()) -> Self:
        other = copy(self)
        other.config_file, other.overrides = config_file, overrides
        return other

    def fill(self, config: dict[str, Any], facts: "Facts") -> "Replay":
        return standalone.then_deepspeed(
            replay.run_replay(config, prepare.run, facts, self), facts, self.version
        )


accelerate = Accelerate  # looked up by program name
