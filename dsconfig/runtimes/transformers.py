"""The Trainer of transformers, which fills some "auto" and hands the rest to DeepSpeed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dsconfig.lazily import lazily
from dsconfig.runtimes import accelerate
from dsconfig.runtimes.base import AutoFate, Runtime
from dsconfig.runtimes.deepspeed import fate_of_auto
from dsconfig.schema.version import NEWEST, Version

with lazily():
    from dsconfig.runtimes.behaviour import alone, replay, trainer

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.behaviour.replay import Replay

_SQUARE = "hidden_size squared"
_OPTIMIZER, _SCHEDULER = "optimizer.params", "scheduler.params"
_ZERO = "zero_optimization"
FILLED_WITH: Mapping[str, str] = {
    "train_batch_size": "ranks x per_device_train_batch_size x gradient_accumulation_steps",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "fp16.enabled": "true with fp16 or fp16_full_eval",
    "bf16.enabled": "true with bf16 or bf16_full_eval",
    f"{_OPTIMIZER}.lr": "learning_rate",
    f"{_OPTIMIZER}.betas": "[adam_beta1, adam_beta2]",
    f"{_OPTIMIZER}.eps": "adam_epsilon",
    f"{_OPTIMIZER}.weight_decay": "weight_decay",
    f"{_SCHEDULER}.warmup_min_lr": "0",
    f"{_SCHEDULER}.warmup_max_lr": "learning_rate",
    f"{_SCHEDULER}.warmup_num_steps": "the warm-up steps, at least 1",
    f"{_SCHEDULER}.total_num_steps": "the training steps",
    f"{_ZERO}.reduce_bucket_size": _SQUARE,
    f"{_ZERO}.stage3_prefetch_bucket_size": f"0.9 times {_SQUARE}, rounded down; at stage 3 only",
    f"{_ZERO}.stage3_param_persistence_threshold": "10 times hidden_size; at stage 3 only",
}
"""What stands in the place of "auto" afterwards, in words: TrainingArguments and model config."""
_BY_ITSELF = frozenset(tuple(path.split(".")) for path in FILLED_WITH)
_FILLED = _BY_ITSELF | accelerate.FILLED
"""The Trainer goes on through accelerate, which fills more and stops at every other "auto"."""


class Transformers(Runtime):
    """``entry``: "config" for HfTrainerDeepSpeedConfig alone, "trainer" for the whole trainer.

    ``launched`` is true where the config comes through ``accelerate launch`` instead of
    ``TrainingArguments.deepspeed``; ``environment`` holds the variables it sets, and
    ``config_file`` is false where it names no file.
    """

    name = "transformers"
    filled_with: ClassVar[Mapping[str, str]] = {**accelerate.FILLED_WITH, **FILLED_WITH}
    reads_hjson: ClassVar[bool] = False
    compares_arguments: ClassVar[bool] = True

    def __init__(
        self,
        *,
        version: Version = NEWEST,
        entry: str = "trainer",
        launched: bool = False,
        config_file: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(version=version)
        self.entry = entry
        self.launched = launched
        self.config_file = config_file
        self.environment = environment or {}

    @property
    def wants_zero_block(self) -> bool:
        return self.entry == "trainer"

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoFate:
        if self.entry == "config" and path not in _BY_ITSELF:
            return fate_of_auto(path, config, self.version)
        return AutoFate.FILLED if path in _FILLED else AutoFate.REFUSED_LATE

    def fill(self, config: dict[str, Any], facts: "Facts") -> "Replay":
        if self.entry == "config":
            return replay.replayed(config, trainer.config_alone, facts)
        launch = trainer.Launch(self.launched, self.config_file, self.environment)
        filled = replay.replayed(config, trainer.trainer, facts, launch)
        return alone.handed_on(filled, facts, self.version)


def transformers(
    version: Version = NEWEST,
    *,
    entry: str = "trainer",
    launched: bool = False,
    config_file: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Transformers:
    """The Trainer on a DeepSpeed release. Raises ValueError for an unknown ``entry``."""
    if entry not in ("config", "trainer"):
        raise ValueError(f'entry={entry!r}: write "config" or "trainer"')
    return Transformers(
        version=version,
        entry=entry,
        launched=launched,
        config_file=config_file,
        environment=environment,
    )
