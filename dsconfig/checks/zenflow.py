"""Rules for ZenFlow, optimizer offload that updates the most important gradients first."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal
from dsconfig.checks.rule import AT_INIT, Finding, Path
from dsconfig.report import Effect
from dsconfig.runtimes.read_config import ZERO

BLOCK: Path = (*ZERO, "zenflow")
OFFLOADED = '"offload_optimizer": {"device": "cpu"}'


def _is_on(config: Context) -> bool:
    return BLOCK in config.reading.values and config.get(*BLOCK) is not None


@refusal("DSC451", also=(Effect.ALTERED,), triggers="zero_optimization.zenflow", late=True)
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
            on_key=True,
        )
    elif config.offload("offload_optimizer") == "none":
        yield Finding(
            path=BLOCK,
            message=f"zenflow requires optimizer offload: {AT_INIT}",
            help=f"add {OFFLOADED}",
            effect=None if config.stage < 3 else Effect.ALTERED,
            late=config.stage < 3,
            on_key=True,
        )


@refusal("DSC452", triggers="zero_optimization.zenflow", late=True)
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
    for violation in config.violations("zenflow-selection"):
        yield _selection(violation.path[-1], f"{violation.message}: DeepSpeed rejects the config")
    strategy = config.in_force(BLOCK, "select_strategy")
    interval = config.reading.values[BLOCK].get("select_interval", "auto")
    update = config.reading.values[BLOCK].get("update_interval", "auto")
    numeric = isinstance(interval, int)
    if strategy == "auto" and numeric:
        yield _unusable("select_interval", 'must not be set if select_strategy is "auto"')
    if strategy in ("step", "epoch") and not numeric:
        yield _unusable("select_strategy", "requires a numeric select_interval")
    if strategy == "step" and numeric and isinstance(update, int) and 0 < interval < update:
        yield _unusable("select_interval", "must not be shorter than update_interval")


def _unusable(name: str, problem: str) -> Finding:
    return _selection(name, f"zenflow.{name} {problem}: {AT_INIT}", late=True)


def _selection(name: str, message: str, *, late: bool = False) -> Finding:
    return Finding(
        path=(*BLOCK, name),
        message=message,
        help='delete select_strategy and select_interval, or write "step" and a number',
        late=late,
    )


@refusal("DSC453", triggers="zero_optimization.zenflow", late=True)
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
            path=(*BLOCK, "offload"),
            message=f"zenflow.offload requires overlap_comm: {AT_INIT}",
            help='add "overlap_comm": true to zero_optimization',
        )
