"""Rules for known bugs of DeepSpeed releases with Muon.

As in ``known_faults``, each bug is reported in the thread that its message names, and was seen on
CPU with an affected release. DSC849 and DSC850: Muon's step has singular values near 1 per unit of
learning rate, that of SGD has those of the gradient. The ranges of releases are read in the
sources.
"""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.fault import Evidence, FaultFinding, fault
from dsconfig.report import Effect
from dsconfig.schema.paths import OFFLOAD_OPTIMIZER, OPTIMIZER_TYPE, ZERO


def _at(config: Context, *stages: int) -> bool:
    """Return whether the optimizer is Muon at one of these stages, and DeepSpeed accepts it."""
    if not config.stage_is_known or config.stage not in stages or not config.is_optimizer("Muon"):
        return False
    # Up to 0.18.4, ZeRO rejects Muon as untested unless this key allows it (DSC606).
    recognized = config.stage == 0 or config.since("0.18.5")
    return recognized or config.switch("zero_allow_untested_optimizer")


@fault(
    "DSC849",
    "0.17.6 to 0.19.6",
    "deepspeedai/DeepSpeed#8441",
    "use DeepSpeed 0.19.7 or later, or stage 1 or 2",
    triggers="optimizer",
)
def muon_is_sgd_at_stage_0(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.17.6 to 0.19.6 train matrices with SGD if the optimizer is Muon at stage 0

    In these releases the ZeRO optimizers orthogonalize the gradient, not Muon's own step, which
    adds the gradient as it is, without momentum. At stage 0 none of them runs.

    with: version="0.19.6"
    bad: {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02}},
        "zero_optimization": {"stage": 1}}
    """
    if _at(config, 0):
        behavior = "train matrices with plain SGD at stage 0 instead of Muon"
        yield FaultFinding(OPTIMIZER_TYPE, behavior)


@fault(
    "DSC850",
    "0.17.6 to 0.19.7",
    "deepspeedai/DeepSpeed#8463",
    "use DeepSpeed 0.19.8 or later, or train without optimizer offload",
    triggers="optimizer",
)
def muon_is_sgd_with_offload(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.17.6 to 0.19.7 train matrices with SGD if Muon is offloaded at stage 1 or 2

    The gradient is orthogonalized while the partition in GPU memory is filled, which offload
    bypasses. Muon's own step then adds the gradient as it is, without momentum. 0.19.3 to 0.19.7
    reject this unless `reduce_scatter` is false (DSC621).

    with: version="0.19.2"
    bad: {"train_batch_size": 8, "zero_allow_untested_optimizer": true, "optimizer": {"type":
        "Muon", "params": {"lr": 0.02}}, "zero_optimization": {"stage": 2, "reduce_scatter": false,
        "offload_optimizer": {"device": "cpu"}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02}},
        "zero_optimization": {"stage": 2, "reduce_scatter": false}}
    """
    refused = config.since("0.19.3") and config.in_force(ZERO, "reduce_scatter")
    if _at(config, 1, 2) and config.offload("offload_optimizer") != "none" and not refused:
        behavior = "train matrices with plain SGD instead of Muon if the optimizer is offloaded"
        yield FaultFinding(OFFLOAD_OPTIMIZER, behavior)


@fault(
    "DSC851",
    "0.17.6 to 0.19.2",
    "deepspeedai/DeepSpeed#7807",
    'use DeepSpeed 0.19.3 or later, or add "reduce_scatter": false to zero_optimization',
    triggers="optimizer",
)
def muon_on_unreduced_gradients(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.17.6 to 0.19.2 orthogonalize matrices that are not fully reduced

    At stages 1 and 2 with `reduce_scatter`, enabled by default, a rank averages only its part of a
    matrix that spans two partitions. Muon orthogonalizes the matrix with the unreduced rest, so
    every rank applies part of a different update. Matrices within one partition are correct.

    with: version="0.19.2"
    bad: {"train_batch_size": 8, "zero_allow_untested_optimizer": true, "optimizer": {"type":
        "Muon", "params": {"lr": 0.02}}, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02}},
        "zero_optimization": {"stage": 2, "reduce_scatter": false}}
    """
    scatters = config.in_force(ZERO, "reduce_scatter") and config.facts.world_size != 1
    if _at(config, 1, 2) and scatters and config.offload("offload_optimizer") == "none":
        key = ZERO / "reduce_scatter"
        behavior = "apply a wrong Muon update to matrices that span two ranks' partitions"
        yield FaultFinding(key if config.has(*key) else OPTIMIZER_TYPE, behavior)


@fault(
    "DSC852",
    "0.17.6 to 0.18.0",
    "deepspeedai/DeepSpeed#7641",
    "use DeepSpeed 0.18.1 or later, or set use_muon = False on these parameters in the script",
    effect=Effect.NOTE,
    triggers="optimizer",
)
def muon_on_embeddings(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.17.6 and 0.18.0 train embeddings and the output head with Muon

    They select every parameter with two dimensions or more. Later releases train parameters with
    `embed` or `lm_head` in their name with Adam, as Muon's authors do.

    with: version="0.18.0"
    bad: {"train_batch_size": 8, "zero_allow_untested_optimizer": true, "optimizer": {"type":
        "Muon", "params": {"lr": 0.02}}, "zero_optimization": {"stage": 1}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "zero_optimization": {"stage": 1}}
    """
    if _at(config, 1, 2):
        behavior = "train embeddings and the output head with Muon instead of Adam"
        yield FaultFinding(OPTIMIZER_TYPE, behavior)


@fault(
    "DSC853",
    "0.18.9 to 0.19.6",
    "deepspeedai/DeepSpeed#8438",
    "use DeepSpeed 0.19.7 or later, or create the model before TrainingArguments and outside "
    "zero.Init",
    effect=Effect.NOTE,
    triggers="optimizer",
    evidence=Evidence.ENDS,
)
def muon_is_adam_under_zero_init(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.18.9 to 0.19.6 train everything with Adam if Muon's model is built in zero.Init

    At stage 3 a parameter created under `zero.Init` has one dimension until it is gathered, and
    Muon selects parameters by their dimensions. The Trainer's `from_pretrained` uses `zero.Init`
    once TrainingArguments exist.

    with: version="0.19.6"
    bad: {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02}},
        "zero_optimization": {"stage": 3, "reduce_scatter": false}}
    good: {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02}},
        "zero_optimization": {"stage": 2, "reduce_scatter": false}}
    """
    if _at(config, 3):
        behavior = "train all parameters with Adam instead of Muon if zero.Init creates the model"
        yield FaultFinding(OPTIMIZER_TYPE, behavior)
