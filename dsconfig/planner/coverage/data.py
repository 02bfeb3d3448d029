"""data_efficiency: only its seed and its switches concern a plain loader."""

from dsconfig.planner.coverage.rules import inert

RULES = {
    "data_efficiency.seed": inert("the sampler's seed is 0, as in DeepSpeed's plain loader"),
    "data_efficiency.data_sampling.num_workers": inert(
        "read by DeepSpeed's curriculum only; two processes feed an accelerator, none a CPU"
    ),
    "data_efficiency.data_sampling.pin_memory": inert(
        "read by DeepSpeed's curriculum only; batches for an accelerator are pinned"
    ),
}
