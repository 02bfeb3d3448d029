"""The optimizer and scheduler blocks."""

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
    """Whether a test holds of the type that the config names."""

    def holds(value: object, config: Effective) -> bool:
        found = optimizer_type(str(value))
        return found is not None and test(found)

    return Condition(words, holds)


def _type_of(config: Effective) -> str | None:
    found = optimizer_type(config.optimizer.type) if config.optimizer is not None else None
    return found.name if found is not None else None


def _class_where(test: Callable[[OptimizerClass], bool], words: str) -> Condition:
    """Whether a test holds of the class that the engine builds."""
    return _where(
        lambda found: found.in_engine is not None and test(OPTIMIZER_CLASSES[found.in_engine]),
        words,
    )


ONE_BIT = _where(lambda found: found.until is not None, "for a 1-bit optimizer")
NOT_BUILT = _where(
    lambda found: found.in_engine is None, "for Lamb and the mu-parametrised optimizers"
)
CLOSURE = _class_where(lambda kind: kind.needs_closure, "for LBFGS")
SPARSE = _class_where(lambda kind: kind.needs_sparse, "for SparseAdam")
ADAMW = Condition("for AdamW", lambda _, config: _type_of(config) == "AdamW")
WHOLE = _class_where(lambda kind: not kind.is_elementwise, "for Adafactor and Muon")

RULES = {
    "optimizer.type": refused(
        "1-bit optimizers compress communication DeepSpeed's own way and are not built; use AdamW",
        ONE_BIT,
    )
    + refused(
        "no torch optimizer of that name exists; pass your own optimizer or use AdamW",
        NOT_BUILT,
    )
    + refused(
        "LBFGS evaluates the loss several times in a step, which forward, backward and step cannot "
        "offer; use AdamW",
        CLOSURE,
    )
    + refused(
        "SparseAdam needs sparse gradients, and divided gradients are dense; use stage 0 with "
        "sparse embeddings, or AdamW",
        SPARSE & SHARDED,
    )
    + refused(
        "Adafactor and Muon cannot be divided into tiles on the host; remove offload_optimizer or "
        "use AdamW",
        WHOLE & OPTIMIZER_OFFLOADED,
    )
    + honoured("torch's optimizer of that name, Lion, or Muon with Adam, over the local shards"),
    "optimizer.params": honoured("arguments of the optimizer"),
    "optimizer.legacy_fusion": inert("a switch of DeepSpeed's fused fp16 wrapper"),
    "optimizer.params.torch_adam": honoured(
        "torch's optimizers are always used; true: AdamW decays by torch's default of 0.01"
    ),
    "optimizer.params.adam_w_mode": inert("type AdamW is AdamW", ADAMW)
    + honoured("false: Adam with L2 instead of AdamW"),
    "optimizer.params.bias_correction": inert("on, as in torch", ON)
    + refused("torch's Adam always corrects its bias; remove the key"),
    "optimizer.params.set_grad_none": inert("gradients are always freed after the step"),
    "optimizer.params.fp32_optimizer_states": inert("states are fp32"),
    "optimizer.params.ns_method": inert("both orthogonalise alike; torch has the standard method"),
    "optimizer.params.per_head_muon": off_or_refused(
        "whole matrices are orthogonalised, not heads; remove the key"
    ),
    "optimizer.params.max_grad_norm": refused(
        "DeepSpeed refuses it too; write gradient_clipping at the top level"
    ),
    "scheduler.type": honoured("DeepSpeed's schedule of that name, else torch's"),
    "scheduler.params": honoured("arguments of the schedule"),
    "scheduler.params.schedulers": refused(
        "schedules of schedules are built over an optimizer; pass a function of it to initialize "
        "as lr_scheduler"
    ),
} | {
    f"optimizer.params.{name}": refused(
        f"only {owner} reads it, which is not supplied; remove the key"
    )
    for owner, names in {
        "Lamb": ("eps_inside_sqrt", "max_coeff", "min_coeff"),
        "LBFGS": (
            *("max_iter", "max_eval", "tolerance_grad", "tolerance_change"),
            *("history_size", "line_search_fn"),
        ),
    }.items()
    for name in names
}
FAMILIES = {"scheduler.params": honoured("an argument of the schedule")}


def argument(name: str) -> Rule:
    """The fate of an argument of the optimizer that has no rule of its own."""

    def is_unknown(value: object, config: Effective) -> bool:
        named = config.optimizer
        return named is not None and engine_takes(named.type, named.params, name) is False

    unknown = Condition("of another optimizer", is_unknown)
    return refused("this optimizer does not take it; remove the key", unknown) + honoured(
        "an argument of the optimizer"
    )


def is_taken(block: object) -> bool:
    """Whether every config of this block alone is honoured: an element-wise optimizer that the
    engine builds, with arguments that it takes."""
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
