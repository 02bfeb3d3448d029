"""The keys DeepSpeed refuses by name, since when, and what to write instead."""

from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.schema.version import Version

Path = tuple[str, ...]
REMOVED_7 = Version(0, 19, 7)
REMOVED_8 = Version(0, 19, 8)


class Removal(NamedTuple):
    """``by_engine`` is true where our own engine still has the feature."""

    refused_from: Version
    advice: str
    by_engine: bool = False


REMOVALS: Mapping[Path, Removal] = {
    ("sparse_attention",): Removal(REMOVED_7, "delete it; use a model with flash attention"),
    ("quantize_training",): Removal(REMOVED_7, "delete it; quantise with another library"),
    ("compression_training",): Removal(REMOVED_7, "delete it; compress with another library"),
    ("nebula",): Removal(REMOVED_7, 'delete it; see "checkpoint" for parallel writers'),
    ("zero_optimization", "mics_shard_size"): Removal(
        REMOVED_7, "delete it, or use zero_hpz_partition_size", by_engine=True
    ),
    ("zero_optimization", "mics_hierarchical_params_gather"): Removal(
        REMOVED_7, "delete it, or use zero_hpz_partition_size"
    ),
    ("amp",): Removal(REMOVED_8, 'write "bf16" or "torch_autocast" instead'),
    ("sparse_gradients",): Removal(
        REMOVED_8, "delete it; embeddings built with sparse=True need no key", by_engine=True
    ),
    ("progressive_layer_drop",): Removal(REMOVED_8, "delete it"),
    ("elasticity",): Removal(REMOVED_8, "delete it and set the batch numbers", by_engine=True),
    ("curriculum_learning",): Removal(
        REMOVED_8, "move it to data_efficiency.data_sampling.curriculum_learning"
    ),
    ("graph_harvesting",): Removal(REMOVED_8, "delete it"),
    ("eigenvalue",): Removal(REMOVED_8, "delete it; it was never read at the top level"),
    ("zero_optimization", "zeropp_loco_param"): Removal(
        REMOVED_8, "delete it; quantised gradients work without error feedback"
    ),
}
