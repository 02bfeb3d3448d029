"""Coverage of the optimizer and scheduler blocks."""

from collections.abc import Callable
from dataclasses import dataclass

from dsconfig.facts import Facts
from dsconfig.features.table import FEATURES
from dsconfig.planner.coverage.rules import (
    ON,
    OPTIMIZER_OFFLOADED,
    SHARDED,
    Case,
    Condition,
    Rule,
    honoured,
    inert,
    off_or_refused,
    refused,
)
from dsconfig.runtimes.built import engine_takes
from dsconfig.runtimes.degrees import with_executed_degrees
from dsconfig.runtimes.effective import Effective
from dsconfig.schema.optimizers import (
    OPTIMIZER_CLASSES,
    OptimizerClass,
    OptimizerType,
    optimizer_type,
)
from dsconfig.source.pointer import is_block


def _type_of(config: Effective) -> str | None:
    found = optimizer_type(config.optimizer.type) if config.optimizer is not None else None
    return found.name if found is not None else None


def _class_of(found: OptimizerType) -> OptimizerClass:
    """Return the class that the engine creates; one without properties if there is none."""
    return OPTIMIZER_CLASSES.get(found.in_engine or "", OptimizerClass(""))


def _is_divided(value: object, config: Effective) -> bool:
    degrees = with_executed_degrees(Facts(), config.config).degrees
    return max(degrees.tensor, degrees.expert) > 1


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Optimizers that a feature refuses, always or under a condition."""

    feature: str
    kinds: str
    test: Callable[[OptimizerType], bool]
    when: Condition | None = None

    def refuses(self, value: object) -> bool:
        found = optimizer_type(str(value))
        return found is not None and self.test(found)

    @property
    def case(self) -> Rule:
        """The case of ``optimizer.type``."""
        of_kind = Condition(f"for {self.kinds}", lambda value, config: self.refuses(value))
        return refused(FEATURES[self.feature], of_kind & self.when if self.when else of_kind)


_PARTS = Condition("with autotp_size or autoep_size above 1", _is_divided)
UNSUPPORTED = (
    Unsupported("one_bit_optimizers", "a 1-bit optimizer", lambda kind: kind.until is not None),
    Unsupported("mup_optimizers", "the muP optimizers", lambda kind: kind.in_engine is None),
    Unsupported("closures", "LBFGS", lambda kind: _class_of(kind).needs_closure),
    Unsupported("sparse_optimizer", "SparseAdam", lambda k: _class_of(k).needs_sparse, SHARDED),
    Unsupported(
        "optimizer_offload_of_matrices",
        "Adafactor, Lamb and Muon",
        lambda kind: not _class_of(kind).is_elementwise,
        OPTIMIZER_OFFLOADED,
    ),
    Unsupported("adafactor_of_parts", "Adafactor", lambda kind: kind.name == "Adafactor", _PARTS),
)
BUILT = honoured("torch's optimizer of this name, Lamb, Lion, or Muon with Adam")
ADAMW = Condition("for AdamW", lambda _, config: _type_of(config) == "AdamW")


def cases_of(name: str) -> Rule:
    """Return the cases of one optimizer."""
    cases: list[Case] = []
    for each in UNSUPPORTED:
        if each.refuses(name):
            cases += refused(FEATURES[each.feature], each.when)
            if each.when is None:
                return tuple(cases)
    return (*cases, *BUILT)


RULES = {
    "optimizer.type": tuple(case for each in UNSUPPORTED for case in each.case) + BUILT,
    "optimizer.params": honoured("optimizer arguments"),
    "optimizer.legacy_fusion": inert("option of DeepSpeed's fused fp16 wrapper"),
    "optimizer.params.torch_adam": honoured(
        "torch's optimizers are always used; true: AdamW uses torch's default weight decay of 0.01"
    ),
    "optimizer.params.adam_w_mode": inert("type AdamW is always AdamW", ADAMW)
    + honoured("false: Adam with L2 regularization instead of AdamW"),
    "optimizer.params.bias_correction": honoured("false: moments are used without correction"),
    "optimizer.params.set_grad_none": inert("gradients are always set to None after the step"),
    "optimizer.params.fp32_optimizer_states": inert("states are fp32", ON)
    + honoured("false: offloaded states have the dtype of the master weights"),
    "optimizer.params.ns_method": inert(
        "both methods orthogonalize; torch implements the standard one"
    ),
    "optimizer.params.per_head_muon": off_or_refused(
        "full matrices are orthogonalized, not heads; remove the key"
    ),
    "optimizer.params.max_grad_norm": refused(
        "DeepSpeed rejects it too; set gradient_clipping at top level"
    ),
    "scheduler.type": honoured("DeepSpeed's schedule of this name, else torch's"),
    "scheduler.params": honoured("scheduler arguments"),
    "scheduler.params.schedulers": refused(FEATURES["nested_schedulers"]),
} | {
    f"optimizer.params.{name}": refused(FEATURES["lbfgs_arguments"])
    for name in (
        *("max_iter", "max_eval", "tolerance_grad", "tolerance_change"),
        *("history_size", "line_search_fn"),
    )
}
FAMILIES = {"scheduler.params": honoured("scheduler argument")}


def argument(name: str) -> Rule:
    """Return the rule of an optimizer argument without a rule of its own."""

    def is_unknown(value: object, config: Effective) -> bool:
        named = config.optimizer
        return named is not None and engine_takes(named.type, named.params, name) is False

    unknown = Condition("if the optimizer does not accept it", is_unknown)
    return refused("not an argument of this optimizer; remove the key", unknown) + honoured(
        "optimizer argument"
    )


def is_supported(block: object) -> bool:
    """Return whether the engine supports this block whatever the other keys are."""
    if not is_block(block):
        return False
    name, params = str(block.get("type")), block.get("params", {})
    return (
        optimizer_type(name) is not None
        and cases_of(name) == BUILT
        and block.keys() <= {"type", "params"}
        and is_block(params)
        and not any(f"optimizer.params.{each}" in RULES for each in params)
        and all(engine_takes(name, params, each) for each in params)
    )
