"""accelerate, which fills some "auto" and refuses every other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dsconfig.runtimes.base import AutoFate, Runtime
from dsconfig.runtimes.deepspeed import BATCH_KEYS
from dsconfig.schema.version import NEWEST, Version

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.behaviour.replay import Replay

FILLED = frozenset(
    {
        *((key,) for key in (*BATCH_KEYS, "gradient_clipping")),
        *(("optimizer", "params", name) for name in ("lr", "weight_decay")),
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
        ("zero_optimization", "stage"),
        ("zero_optimization", "reduce_bucket_size"),
        ("zero_optimization", "stage3_prefetch_bucket_size"),
        ("zero_optimization", "stage3_param_persistence_threshold"),
        ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"),
        ("steps_per_print",),
        *(
            ("zero_optimization", block, name)
            for block in ("offload_param", "offload_optimizer")
            for name in ("device", "nvme_path")
        ),
    }
)
"""Keys for which accelerate has a value; any other "auto" outside lists is a ValueError."""


class Accelerate(Runtime):
    """``prepare`` with what a script hands to it; where nothing is said, what fits the config.

    ``plugin`` are arguments of DeepSpeedPlugin, ``environment`` the variables it reads,
    ``config_file`` is false where it is given no config. ``optimizer`` and ``scheduler`` are
    ``dummy``, ``torch`` or ``none``; ``batch_sizes`` those of the data loaders.
    """

    name = "accelerate"
    reads_hjson: ClassVar[bool] = False
    wants_zero_block: ClassVar[bool] = True

    def __init__(
        self,
        *,
        version: Version = NEWEST,
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

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoFate:
        return AutoFate.FILLED if path in FILLED else AutoFate.REFUSED_LATE

    def fill(self, config: dict[str, Any], facts: "Facts") -> "Replay":
        from dsconfig.runtimes.behaviour import prepare
        from dsconfig.runtimes.behaviour.replay import replayed

        return replayed(config, prepare.run, facts, self)


def accelerate(version: Version = NEWEST, **settings: Any) -> Accelerate:
    """accelerate on a DeepSpeed release; ``settings`` are the fields of :class:`Accelerate`."""
    return Accelerate(version=version, **settings)
