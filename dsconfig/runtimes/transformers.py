"""The Trainer of transformers, which fills some "auto" and hands the rest to DeepSpeed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dsconfig.runtimes.base import AutoFate, Runtime
from dsconfig.runtimes.deepspeed import BATCH_KEYS, fate_of_auto
from dsconfig.schema.version import NEWEST, Version

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.behaviour.replay import Replay

FILLED = frozenset(
    {
        *((key,) for key in (*BATCH_KEYS, "gradient_clipping")),
        *(("optimizer", "params", name) for name in ("lr", "betas", "eps", "weight_decay")),
        *(
            ("scheduler", "params", name)
            for name in (
                "warmup_min_lr",
                "warmup_max_lr",
                "warmup_num_steps",
                "total_num_steps",
            )
        ),
        ("fp16", "enabled"),
        ("bf16", "enabled"),
        ("zero_optimization", "reduce_bucket_size"),
        ("zero_optimization", "stage3_prefetch_bucket_size"),
        ("zero_optimization", "stage3_param_persistence_threshold"),
    }
)
"""Keys for which the Trainer has a value (the last two at stage 3 only)."""


class Transformers(Runtime):
    """``entry``: "config" for HfTrainerDeepSpeedConfig alone, "trainer" for the whole trainer.

    ``launched`` is true where the config comes through ``accelerate launch`` instead of
    ``TrainingArguments.deepspeed``; ``environment`` holds the variables it sets, and
    ``config_file`` is false where it names no file.
    """

    name = "transformers"
    reads_hjson: ClassVar[bool] = False

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

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoFate:
        if path in FILLED:
            return AutoFate.FILLED
        return fate_of_auto(path, config, self.version)

    def fill(self, config: dict[str, Any], facts: "Facts") -> "Replay":
        from dsconfig.runtimes.behaviour import trainer
        from dsconfig.runtimes.behaviour.replay import replayed

        if self.entry == "config":
            return replayed(config, trainer.config_alone, facts)
        launch = trainer.Launch(self.launched, self.config_file, self.environment)
        return replayed(config, trainer.trainer, facts, launch)


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
