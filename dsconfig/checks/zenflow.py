"""ZenFlow: offload that updates the most important gradients first."""

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
    """ZenFlow hides the cost of optimizer offload, so it needs ZeRO and an offloaded optimizer.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}, "zenflow": {"topk_ratio": 0.1}}}
    """
    if not _is_on(config):
        return
    if config.stage == 0:
        yield Finding(
            path=BLOCK,
            message="zenflow at ZeRO stage 0: DeepSpeed stops at the first step",
            help='set "stage" to 1, 2 or 3 and add ' + OFFLOADED,
            on_key=True,
        )
    elif config.offload("offload_optimizer") == "none":
        yield Finding(
            path=BLOCK,
            message=f"zenflow without an offloaded optimizer: {AT_INIT}",
            help=f"add {OFFLOADED}",
            effect=None if config.stage < 3 else Effect.ALTERED,
            late=config.stage < 3,
            on_key=True,
        )


@refusal("DSC452", triggers="zero_optimization.zenflow", late=True)
def zenflow_selection(config: Context) -> Iterator[Finding]:
    """Strategy and interval of the selection contradict each other, or are unknown.

    Strategy auto sets the interval itself; step and epoch need one that is a number. The
    selection may not change more often than the update that follows it.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}, "zenflow": {"select_strategy": "auto", "select_interval": 4}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}, "zenflow": {"select_strategy": "step", "select_interval": 4}}}
    """
    if not _is_on(config):
        return
    for violation in config.violations("zenflow-selection"):
        yield _selection(
            violation.path[-1], f"{violation.said}: DeepSpeed stops while it reads the file"
        )
    strategy = config.in_force(BLOCK, "select_strategy")
    interval = config.reading.values[BLOCK].get("select_interval", "auto")
    update = config.reading.values[BLOCK].get("update_interval", "auto")
    numeric = isinstance(interval, int)
    if strategy == "auto" and numeric:
        yield _unusable("select_interval", 'is set although select_strategy is "auto"')
    if strategy in ("step", "epoch") and not numeric:
        yield _unusable("select_strategy", "needs a select_interval that is a number")
    if strategy == "step" and numeric and isinstance(update, int) and 0 < interval < update:
        yield _unusable("select_interval", "is shorter than update_interval")


def _unusable(name: str, what: str) -> Finding:
    return _selection(name, f"zenflow.{name} {what}: {AT_INIT}", late=True)


def _selection(name: str, message: str, *, late: bool = False) -> Finding:
    return Finding(
        path=(*BLOCK, name),
        message=message,
        help='leave select_strategy and select_interval out, or write "step" and a number',
        late=late,
    )


@refusal("DSC453", triggers="zero_optimization.zenflow", late=True)
def zenflow_offload_needs_overlap(config: Context) -> Iterator[Finding]:
    """zenflow.offload needs overlap_comm, which is off by default below stage 3.

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
            message=f"zenflow.offload needs overlap_comm: {AT_INIT}",
            help='add "overlap_comm": true to zero_optimization',
        )
