"""The optimizer and scheduler blocks."""

from dsconfig.planner.coverage.rules import (
    OFF,
    ON,
    OPTIMIZER_OFFLOADED,
    SHARDED,
    Condition,
    honoured,
    inert,
    refused,
)

ONE_BIT = ("onebitadam", "onebitlamb", "zerooneadam")
KERNELS = ("lamb", "muadam", "muadamw", "musgd")
CLOSURES = ("lbfgs",)
SPARSE = ("sparseadam",)
WHOLE = ("adafactor", "muon")


def _named(names: tuple[str, ...], words: str) -> Condition:
    return Condition(words, lambda value, config: str(value).lower() in names)


RULES = {
    "optimizer.type": refused(
        "1-bit optimizers compress communication DeepSpeed's own way and are not built; use AdamW",
        _named(ONE_BIT, "for a 1-bit optimizer"),
    )
    + refused(
        "no torch optimizer of that name exists; pass your own optimizer or use AdamW",
        _named(KERNELS, "for Lamb and the mu-parametrised optimizers"),
    )
    + refused(
        "LBFGS evaluates the loss several times in a step, which forward, backward and step cannot "
        "offer; use AdamW",
        _named(CLOSURES, "for LBFGS"),
    )
    + refused(
        "SparseAdam needs sparse gradients, and divided gradients are dense; use stage 0 with "
        "sparse embeddings, or AdamW",
        _named(SPARSE, "for SparseAdam") & SHARDED,
    )
    + refused(
        "Adafactor and Muon cannot be divided into tiles on the host; remove offload_optimizer or "
        "use AdamW",
        _named(WHOLE, "for Adafactor and Muon") & OPTIMIZER_OFFLOADED,
    )
    + honoured("torch's optimizer of that name, Lion, or Muon with Adam, over the local shards"),
    "optimizer.params": honoured("arguments of the optimizer"),
    "optimizer.legacy_fusion": inert("a switch of DeepSpeed's fused fp16 wrapper"),
    "optimizer.params.torch_adam": honoured(
        "torch's optimizers are always used; true: AdamW decays by torch's default of 0.01"
    ),
    "optimizer.params.adam_w_mode": honoured("false: Adam with L2 instead of AdamW"),
    "optimizer.params.bias_correction": inert("on, as in torch", ON)
    + refused("torch's Adam always corrects its bias; remove the key"),
    "optimizer.params.set_grad_none": inert("gradients are always freed after the step"),
    "optimizer.params.fp32_optimizer_states": inert("states are fp32"),
    "optimizer.params.ns_method": inert("both orthogonalise alike; torch has the standard method"),
    "optimizer.params.per_head_muon": inert("off", OFF)
    + refused("whole matrices are orthogonalised, not heads; remove the key"),
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
FAMILIES = {
    "optimizer.params": honoured("an argument of the optimizer"),
    "scheduler.params": honoured("an argument of the schedule"),
}
