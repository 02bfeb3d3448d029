"""accelerate, which fills some "auto" and refuses every other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dsconfig.lazily import lazily
from dsconfig.runtimes.base import AutoFate, Runtime
from dsconfig.schema.version import NEWEST, Version

with lazily():
    from dsconfig.runtimes.behaviour import alone, prepare, replay

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.behaviour.replay import Replay

_SQUARE = "hidden_size squared"
_OPTIMIZER, _SCHEDULER = "optimizer.params", "scheduler.params"
_ZERO = "zero_optimization"
_PLUGIN = "the plugin's value, else the environment's, else"

FILLED_WITH: Mapping[str, str] = {
    "train_batch_size": "micro batch x accumulation x processes, divided by the sequence ranks",
    "train_micro_batch_size_per_gpu": "the smallest batch size of the loaders given to prepare",
    "gradient_accumulation_steps": f"{_PLUGIN} the Accelerator's own",
    "gradient_clipping": f"{_PLUGIN} 1.0",
    "steps_per_print": "infinity, whatever the file says",
    "fp16.enabled": "true with mixed_precision fp16",
    "bf16.enabled": "true with mixed_precision bf16 or fp8",
    f"{_OPTIMIZER}.lr": "lr of DummyOptim",
    f"{_OPTIMIZER}.weight_decay": "weight_decay of DummyOptim",
    f"{_SCHEDULER}.warmup_min_lr": "0",
    f"{_SCHEDULER}.warmup_max_lr": "lr of the schedule's optimizer",
    f"{_SCHEDULER}.warmup_num_steps": "warmup_num_steps of DummyScheduler, at least 1",
    f"{_SCHEDULER}.total_num_steps": "total_num_steps of DummyScheduler, divided by processes",
    f"{_ZERO}.stage": f"{_PLUGIN} 2",
    f"{_ZERO}.offload_optimizer.device": f"{_PLUGIN} none",
    f"{_ZERO}.offload_optimizer.nvme_path": f"{_PLUGIN} the word none",
    f"{_ZERO}.offload_param.device": f"{_PLUGIN} none",
    f"{_ZERO}.offload_param.nvme_path": f"{_PLUGIN} the word none",
    f"{_ZERO}.stage3_gather_16bit_weights_on_model_save": f"{_PLUGIN} false",
    f"{_ZERO}.reduce_bucket_size": _SQUARE,
    f"{_ZERO}.stage3_prefetch_bucket_size": f"0.9 times {_SQUARE}, rounded down, at any stage",
    f"{_ZERO}.stage3_param_persistence_threshold": "10 times hidden_size, at any stage",
}
"""What stands in the place of "auto" afterwards; any other outside lists is a ValueError."""
FILLED = frozenset(tuple(path.split(".")) for path in FILLED_WITH)


class Accelerate(Runtime):
    """``prepare`` with what a script hands to it; where nothing is said, what fits the config.

    ``plugin`` are arguments of DeepSpeedPlugin, ``environment`` the variables it reads,
    ``config_file`` is false where it is given no config. ``optimizer`` and ``scheduler`` are
    ``dummy``, ``torch`` or ``none``; ``batch_sizes`` those of the data loaders.
    """

    name = "accelerate"
    filled_with = FILLED_WITH
    reads_hjson: ClassVar[bool] = False

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

    @property
    def wants_zero_block(self) -> bool:
        return True

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoFate:
        return AutoFate.FILLED if path in FILLED else AutoFate.REFUSED_LATE

    def fill(self, config: dict[str, Any], facts: "Facts") -> "Replay":
        return alone.handed_on(
            replay.replayed(config, prepare.run, facts, self), facts, self.version
        )


def accelerate(version: Version = NEWEST, **settings: Any) -> Accelerate:
    """accelerate on a DeepSpeed release; ``settings`` are the fields of :class:`Accelerate`."""
    return Accelerate(version=version, **settings)
