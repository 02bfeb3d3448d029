"""Elastic training: one global batch that suits many world sizes."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number


class Elasticity(Block, since="0.3.9", until="0.19.7"):
    """A global batch chosen so that many numbers of GPUs divide it."""

    enabled: bool = key(False, "Lets the batch sizes be chosen.")
    max_train_batch_size: Integer = key(2000, "Largest global batch.")
    micro_batch_sizes: list[Integer] = key([2, 4, 6], "Micro batches to choose from.")
    min_gpus: Integer = key(1, "Fewest GPUs.")
    max_gpus: Integer = key(10_000, "Most GPUs.")
    num_gpus_per_node: Integer = key(1, "GPUs per node.", since="0.7.0")
    model_parallel_size: Integer = key(1, "Ranks that share one copy of the model.", since="0.7.0")
    min_time: Integer = key(0, "Minutes between two rescales.", was={"0.3.10": "20"})
    prefer_larger_batch: bool = key(True, "Breaks ties towards the larger batch.")
    ignore_non_elastic_batch_info: bool = key(
        False, "Overrides batch sizes that the file sets itself."
    )
    version: Number = key(0.2, "Version of the algorithm.", was={"0.7.0": 0.1})
