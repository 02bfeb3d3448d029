"""``Accelerator.prepare`` up to the call of ``deepspeed.initialize``."""

from dataclasses import dataclass
from math import ceil
from typing import Any, cast

from dsconfig.facts import ModelTree
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.behaviour import hidden_size
from dsconfig.runtimes.behaviour.nodes import is_auto, value
from dsconfig.runtimes.behaviour.outcome import Outcome, Stops, about

MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script hands to ``prepare``.

    ``batch_sizes`` are those of its data loaders (None: a loader without one); ``optimizer``
    and ``scheduler`` are ``dummy``, ``torch`` or None. ``scheduled_lr`` is the rate of the
    optimizer the scheduler was made for.
    """

    processes: int
    accumulation: int
    batch_sizes: tuple[int | None, ...]
    model: ModelTree | None
    has_model: bool = True
    optimizer: str | None = None
    scheduler: str | None = None
    scheduler_is_callable: bool = False
    learning_rate: Any = None
    weight_decay: Any = None
    scheduled_lr: Any = None
    warmup_steps: Any = 0
    total_steps: int | None = None
    split_batches: bool = False
    smallest_batch: bool = True
    sequence_parallel: int = 1


def prepare(outcome: Outcome, script: Script) -> None:
    """Fill what accelerate fills, in place. Raises Stops where it raises."""
    config = outcome.config
    with about("tensor_parallel.autotp_size"):
        cast(int, config.get("tensor_parallel", {}).get("autotp_size", 0)) > 1  # noqa: B015 # pyright: ignore[reportUnusedExpression]
    micro = _micro_batch(outcome, script)
    if value(config, STEPS) == AUTO:
        config[STEPS] = script.accumulation
        outcome.wrote(STEPS, "the Accelerator's own gradient_accumulation_steps")
    known: dict[str, Any] = {
        "gradient_clipping": 1.0,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
    }
    if micro is not None:
        known[MICRO] = micro
        with about("train_batch_size", MICRO, STEPS):
            product = micro * value(config, STEPS) * script.processes // script.sequence_parallel
        known["train_batch_size"] = product
    _check_optimizer_and_scheduler(outcome, script)
    if not script.has_model:
        return
    known |= _by_width(config, script) | _by_optimizer(script) | _by_scheduler(script)
    _fill_all(outcome, config, known, "")
    if script.sequence_parallel > 1:
        ranks = script.processes // script.sequence_parallel
        config["train_batch_size"] = config[MICRO] * config[STEPS] * ranks


def _micro_batch(outcome: Outcome, script: Script) -> Any:
    if not is_auto(outcome.config, MICRO):
        return value(outcome.config, MICRO)
    if not script.batch_sizes:
        said = "no data loader is passed to prepare, and the micro batch is auto"
        raise Stops("ValueError", said, MICRO, late=True)
    sizes = [size for size in script.batch_sizes if size is not None]
    if len(sizes) < len(script.batch_sizes):
        said = "a data loader passed to prepare has no batch size"
        raise Stops("ValueError", said, MICRO, late=True)
    if script.split_batches:
        sizes = [size // script.processes for size in sizes]
    chosen = min(sizes) if script.smallest_batch else max(sizes)
    rule = "the batch size of the data loaders passed to prepare"
    if len(set(sizes)) > 1:
        rule += f" (the {'smallest' if script.smallest_batch else 'largest'} of {sizes})"
        outcome.remark(
            "DSC751",
            "micro-batch-from-eval-loader",
            MICRO,
            f"the data loaders have batches of {sizes}; accelerate trains with {chosen}, also "
            "where that is the evaluation loader's",
            "write the micro batch in the config, or prepare the evaluation loader by itself",
        )
    outcome.wrote(MICRO, rule)
    return chosen


def _check_optimizer_and_scheduler(outcome: Outcome, script: Script) -> None:
    config = outcome.config
    if script.optimizer is not None:
        if "optimizer" in config and script.optimizer != "dummy":
            said = "an optimizer in the config and another one in the script"
            raise Stops("ValueError", said, "optimizer", late=True)
        if "optimizer" not in config and script.optimizer == "dummy":
            said = "a DummyOptim in the script and no optimizer in the config"
            raise Stops("ValueError", said, "optimizer", late=True)
        if script.optimizer == "torch":
            config["zero_allow_untested_optimizer"] = True
            outcome.wrote("zero_allow_untested_optimizer", "the script brings its own optimizer")
    if script.scheduler is not None:
        if "scheduler" in config and script.scheduler != "dummy":
            said = "a scheduler in the config and another one in the script"
            raise Stops("ValueError", said, "scheduler", late=True)
        nothing = "scheduler" not in config and not script.scheduler_is_callable
        if nothing and script.scheduler == "dummy":
            said = "a DummyScheduler in the script and no scheduler in the config"
            raise Stops("ValueError", said, "scheduler", late=True)
    if script.optimizer == "dummy" and script.scheduler == "torch":
        said = "a DummyOptim goes with a DummyScheduler only"
        raise Stops("ValueError", said, "scheduler", late=True)


def _by_width(config: dict[str, Any], script: Script) -> dict[str, Any]:
    open_keys = [key for key in hidden_size.KEYS if is_auto(config, key)]
    if not open_keys:
        return {}
    width = hidden_size.for_accelerate(script.model, open_keys)
    return dict(zip(hidden_size.KEYS, hidden_size.sizes(width), strict=True))


def _by_optimizer(script: Script) -> dict[str, Any]:
    if script.optimizer != "dummy":
        return {}
    return {
        "optimizer.params.lr": script.learning_rate,
        "optimizer.params.weight_decay": script.weight_decay,
    }


def _by_scheduler(script: Script) -> dict[str, Any]:
    if script.scheduler != "dummy" or script.scheduler_is_callable:
        return {}
    known: dict[str, Any] = {
        "scheduler.params.warmup_min_lr": 0,
        "scheduler.params.warmup_max_lr": script.scheduled_lr,
        "scheduler.params.warmup_num_steps": max(1, script.warmup_steps),
    }
    if script.total_steps is not None:
        ranks = 1 if script.split_batches else script.processes
        known["scheduler.params.total_num_steps"] = ceil(script.total_steps / ranks)
    return known


def _fill_all(outcome: Outcome, block: dict[str, Any], known: dict[str, Any], prefix: str) -> None:
    """Every scalar "auto", in the config's order; the first without a value is an error."""
    for key, child in block.items():
        path = f"{prefix}{key}"
        if isinstance(child, dict):
            _fill_all(outcome, cast(dict[str, Any], child), known, f"{path}.")
            continue
        if not is_auto(outcome.config, path):
            continue
        if path not in known:
            said = f'accelerate has no value for "auto" at {path}'
            raise Stops("ValueError", said, path, late=True)
        block[key] = known[path]
        outcome.reasons.setdefault(path, (_RULES.get(path, "from what prepare was given"), {}))


_RULES = {
    "train_batch_size": "micro batch x accumulation x processes",
    "gradient_clipping": "accelerate's default",
    "scheduler.params.total_num_steps": "the scheduler's steps divided by the number of processes",
    "scheduler.params.warmup_num_steps": "the scheduler's warmup, not divided; at least 1",
    **dict.fromkeys(hidden_size.KEYS, "by the model's hidden_size"),
}
