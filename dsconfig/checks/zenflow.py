"""Rules for ZenFlow, optimizer offload that updates the most important gradients first."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal
from dsconfig.checks.rule import AT_INIT, REJECTED, Finding, Phase
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO
from dsconfig.schema.paths import ZERO

BLOCK = ZERO / "zenflow"
OFFLOADED = '"offload_optimizer": {"device": "cpu"}'


def _is_on(config: Context) -> bool:
    return BLOCK in config.reading.values and config.get(*BLOCK) is not None


@refusal(
    "DSC451", also=(Effect.ALTERED,), triggers="zero_optimization.zenflow", stops="zero ValueError"
)
def zenflow_needs_offload(config: Context) -> Iterator[Finding]:
    """ZenFlow requires ZeRO and optimizer offload

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}, "zenflow": {"topk_ratio": 0.1}}}
    """
    if not _is_on(config):
        return
    if config.stage == 0:
        yield Finding(
            path=BLOCK,
            message="zenflow requires ZeRO: DeepSpeed fails at the first step",
            help='set "stage" to 1, 2 or 3 and add ' + OFFLOADED,
            phase=Phase.STEP,
            exception="AttributeError",
            on_key=True,
        )
    elif config.offload("offload_optimizer") == "none":
        yield Finding(
            path=BLOCK,
            message=f"zenflow requires optimizer offload: {AT_INIT}",
            help=f"add {OFFLOADED}",
            effect=None if config.stage < 3 else Effect.ALTERED,
            on_key=True,
        )


@refusal("DSC452", triggers="zero_optimization.zenflow", stops="model Warning")
def zenflow_selection(config: Context) -> Iterator[Finding]:
    """Invalid ZenFlow selection

    The strategy `auto` sets the interval itself; `step` and `epoch` require a number. The selection
    interval must not be shorter than `update_interval`.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}, "zenflow": {"select_strategy": "auto", "select_interval": 4}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}, "zenflow": {"select_strategy": "step", "select_interval": 4}}}
    """
    if not _is_on(config):
        return
    strategy = config.in_force(BLOCK, "select_strategy")
    interval = config.reading.values[BLOCK].get("select_interval", AUTO)
    update = config.reading.values[BLOCK].get("update_interval", AUTO)
    numeric = isinstance(interval, int)
    if strategy not in (AUTO, "step", "epoch"):
        yield _rejected("select_strategy", 'must be "auto", "step" or "epoch"')
    for name, value in (("select_interval", interval), ("update_interval", update)):
        if isinstance(value, str) and value != AUTO:
            yield _rejected(name, 'must be a number or "auto"')
    if isinstance(update, int) and update < 1 and config.since("0.19.6"):
        yield _rejected("update_interval", "must be at least 1")
    if strategy == AUTO and numeric:
        problem = 'must not be set if select_strategy is "auto"'
        yield _unusable("select_interval", problem, exception=None)
    if strategy in ("step", "epoch") and not numeric:
        yield _unusable("select_strategy", "requires a numeric select_interval")
    if strategy == "step" and numeric and isinstance(update, int) and 0 < interval < update:
        yield _unusable("select_interval", "must not be shorter than update_interval")


def _unusable(name: str, problem: str, exception: str | None = "ValueError") -> Finding:
    return Finding(
        path=BLOCK / name,
        message=f"zenflow.{name} {problem}: {AT_INIT}",
        help='delete select_strategy and select_interval, or write "step" and a number',
        exception=exception,
    )


def _rejected(name: str, problem: str) -> Finding:
    """Return the finding for a value that the model of the block refuses."""
    return _unusable(name, problem)._replace(
        message=f"zenflow.{name} {problem}: {REJECTED}",
        phase=Phase.PARSE,
        exception="ValidationError",
    )


@refusal("DSC453", triggers="zero_optimization.zenflow", stops="zero AssertionError")
def zenflow_offload_needs_overlap(config: Context) -> Iterator[Finding]:
    """`zenflow.offload` requires `overlap_comm`

    It is disabled by default below stage 3.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}, "zenflow": {"offload": true}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": true,
        "offload_optimizer": {"device": "cpu"}, "zenflow": {"offload": true}}}
    """
    if not _is_on(config) or not config.is_on(BLOCK, "offload") or config.stage == 0:
        return
    if not config.overlap_comm:
        yield Finding(
            path=BLOCK / "offload",
            message=f"zenflow.offload requires overlap_comm: {AT_INIT}",
            help='add "overlap_comm": true to zero_optimization',
        )
