"""Coverage of the optimizer and scheduler blocks."""

from collections.abc import Callable

from dsconfig.planner.coverage.rules import (
    ON,
    OPTIMIZER_OFFLOADED,
    SHARDED,
    Condition,
    Rule,
    honoured,
    inert,
    off_or_refused,
    refused,
)
from dsconfig.runtimes.built import engine_takes
from dsconfig.runtimes.effective import Effective
from dsconfig.schema.optimizers import (
    OPTIMIZER_CLASSES,
    OptimizerClass,
    OptimizerType,
    optimizer_type,
)
from dsconfig.source.pointer import is_block


def _where(test: Callable[[OptimizerType], bool], words: str) -> Condition:
    """Return a condition on the optimizer type of the config."""

    def holds(value: object, config: Effective) -> bool:
        found = optimizer_type(str(value))
        return found is not None and test(found)

    return Condition(words, holds)


def _type_of(config: Effective) -> str | None:
    found = optimizer_type(config.optimizer.type) if config.optimizer is not None else None
    return found.name if found is not None else None


def _class_where(test: Callable[[OptimizerClass], bool], words: str) -> Condition:
    """Return a condition on the class that the engine creates."""
    return _where(
        lambda found: found.in_engine is not None and test(OPTIMIZER_CLASSES[found.in_engine]),
        words,
    )


ONE_BIT = _where(lambda found: found.until is not None, "for a 1-bit optimizer")
UNSUPPORTED = _where(lambda found: found.in_engine is None, "for the muP optimizers")
CLOSURE = _class_where(lambda kind: kind.needs_closure, "for LBFGS")
SPARSE = _class_where(lambda kind: kind.needs_sparse, "for SparseAdam")
ADAMW = Condition("for AdamW", lambda _, config: _type_of(config) == "AdamW")
NOT_ELEMENTWISE = _class_where(lambda kind: not kind.is_elementwise, "for Adafactor, Lamb and Muon")

RULES = {
    "optimizer.type": refused(
        "1-bit optimizers are not supported; use AdamW",
        ONE_BIT,
    )
    + refused(
        "torch has no optimizer of this name; pass your own optimizer or use AdamW",
        UNSUPPORTED,
    )
    + refused(
        "LBFGS evaluates the loss several times per step, which the engine API does not support; "
        "use AdamW",
        CLOSURE,
    )
    + refused(
        "SparseAdam requires sparse gradients, but sharded gradients are dense; use stage 0 with "
        "sparse embeddings, or AdamW",
        SPARSE & SHARDED,
    )
    + refused(
        "Adafactor, Lamb and Muon do not support optimizer offload; remove it or use AdamW",
        NOT_ELEMENTWISE & OPTIMIZER_OFFLOADED,
    )
    + honoured("torch's optimizer of this name, Lamb, Lion, or Muon with Adam"),
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
    "scheduler.params.schedulers": refused(
        "nested schedulers need the optimizer; pass a function of it to initialize as lr_scheduler"
    ),
} | {
    f"optimizer.params.{name}": refused("argument of LBFGS, which is not supported; remove the key")
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
    kind, params = optimizer_type(str(block.get("type"))), block.get("params", {})
    if kind is None or kind.in_engine is None or kind.until is not None or not is_block(params):
        return False
    built = OPTIMIZER_CLASSES[kind.in_engine]
    return (
        block.keys() <= {"type", "params"}
        and built.is_elementwise
        and not (built.needs_closure or built.needs_sparse)
        and not any(f"optimizer.params.{name}" in RULES for name in params)
        and all(engine_takes(str(block["type"]), params, name) for name in params)
    )
