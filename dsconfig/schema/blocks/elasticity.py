"""Elastic training."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number


class Elasticity(Block, since="0.3.9", until="0.19.7"):
    """Elastic training."""

    enabled: bool = key(False, "Setting of the removed elastic training.")
    max_train_batch_size: Integer = key(2000, "Setting of the removed elastic training.")
    micro_batch_sizes: list[Integer] = key([2, 4, 6], "Setting of the removed elastic training.")
    min_gpus: Integer = key(1, "Setting of the removed elastic training.")
    max_gpus: Integer = key(10_000, "Setting of the removed elastic training.")
    num_gpus_per_node: Integer = key(1, "Setting of the removed elastic training.", since="0.7.0")
    model_parallel_size: Integer = key(1, "Setting of the removed elastic training.", since="0.7.0")
    min_time: Integer = key(0, "Setting of the removed elastic training.", was={"0.3.10": "20"})
    prefer_larger_batch: bool = key(True, "Setting of the removed elastic training.")
    ignore_non_elastic_batch_info: bool = key(False, "Setting of the removed elastic training.")
    version: Number = key(0.2, "Setting of the removed elastic training.", was={"0.7.0": 0.1})
