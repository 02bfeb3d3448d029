"""Arguments of the 1-bit optimizers, removed after 0.19.6."""

from dsconfig.schema.blocks.optimizer_params import Decaying
from dsconfig.schema.declare import key
from dsconfig.schema.types import Integer, Number, OrAuto, Pair


class Compressed(Decaying):
    """Optimizer with 1-bit communication after a warmup."""

    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the moments.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    bias_correction: bool = key(True, "Correct the bias of the moments.")
    eps_inside_sqrt: bool = key(False, "Add eps inside the square root.")
    amsgrad: bool = key(False, "DeepSpeed rejects true.")
    cuda_aware: bool = key(False, "Whether MPI is CUDA-aware.", until="0.19.6")
    comm_backend_name: str = key(
        "nccl", "Backend of the compressed all-reduce.", since="0.3.14", until="0.19.6"
    )


class OneBitAdam(Compressed):
    """Adam with momentum compressed to 1 bit."""

    freeze_step: Integer = key(
        100_000, "Steps before compression starts.", unit="steps", until="0.19.6"
    )


class OneBitLamb(Compressed):
    """LAMB with momentum compressed to 1 bit."""

    freeze_step: Integer = key(
        100_000, "Steps before compression starts.", unit="steps", until="0.19.6"
    )
    max_coeff: Number = key(10.0, "Upper bound of the trust ratio.")
    min_coeff: Number = key(0.01, "Lower bound of the trust ratio.")
    coeff_beta: Number = key(
        0.9, "Averaging factor of the frozen ratio.", since="0.3.16", until="0.19.6"
    )
    factor_max: Number = key(
        4.0, "Maximum factor of the frozen ratio.", since="0.3.16", until="0.19.6"
    )
    factor_min: Number = key(
        0.5, "Minimum factor of the frozen ratio.", since="0.3.16", until="0.19.6"
    )
    factor_threshold: Number = key(
        0.1, "Maximum change of the factor per step.", since="0.3.16", until="0.19.6"
    )


class ZeroOneAdam(Compressed):
    """Adam with compressed momentum and skipped exchanges."""

    var_freeze_step: Integer = key(
        100_000, "Last step that updates the variance.", unit="steps", since="0.6.1", until="0.19.6"
    )
    var_update_scaler: Integer = key(
        16, "Growth of the interval between variance updates.", since="0.6.1", until="0.19.6"
    )
    local_step_scaler: Integer = key(
        32_678,
        "Steps after which the local interval grows.",
        unit="steps",
        since="0.6.1",
        until="0.19.6",
    )
    local_step_clipper: Integer = key(
        16, "Maximum steps between two exchanges.", unit="steps", since="0.6.1", until="0.19.6"
    )
