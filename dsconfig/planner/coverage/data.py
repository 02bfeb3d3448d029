"""data_efficiency: only its seed and its switches concern a plain loader."""

from dsconfig.planner.coverage.rules import honoured, inert

RULES = {
    "data_efficiency.seed": inert("the sampler's seed is 0, as in DeepSpeed's plain loader"),
    "data_efficiency.data_sampling.num_workers": honoured("worker processes of the data loader"),
    "data_efficiency.data_sampling.pin_memory": honoured("pinned batches"),
}
