"""Ulysses sequence parallelism for transformers, under DeepSpeed's names."""

import logging
from typing import Any

from dsengine.deepspeed.runtime.sequence_parallel import parallel_state_sp
from dsengine.parallel.loader import SequenceLoader as UlyssesSPDataLoaderAdapter
from dsengine.parallel.tiling import (
    TiledFusedLogitsLoss,
    TiledMLP,
    sequence_tiled_compute,
)
from dsengine.parallel.transformers_attention import register


class UlyssesSPAttentionHF:
    """Registers sequence-parallel attention with transformers."""

    @classmethod
    def register_with_transformers(
        cls,
        model_name_or_path: Any,
        core_attn_implementation: str | None,
        sequence_parallel_size: int,
        micro_batch_size: int,
        seq_length: int | None = None,
        seq_length_is_variable: bool = True,
        disable_in_eval: bool = False,
        max_length: int | None = None,
    ) -> Any:
        """Divide sequences over ``sequence_parallel_size`` ranks; return the ``mpu`` for
        ``initialize``, or None for size 1.

        ``core_attn_implementation`` None, accelerate's default, is that of the model. Any batch
        size and length is accepted: ``micro_batch_size`` and ``seq_length`` are compared with
        nothing. Raises ValueError if the size does not divide the ranks or the model's heads.
        """
        del micro_batch_size
        if sequence_parallel_size == 1:
            return None
        if max_length is not None:
            logging.getLogger("dsengine").warning("max_length is deprecated: use seq_length")
            seq_length = max_length if seq_length is None else seq_length
        if not seq_length_is_variable and seq_length is None:
            raise ValueError("seq_length_is_variable=False requires seq_length")
        parallel_state_sp.initialize_sequence_parallel(sequence_parallel_size)
        register(
            model_name_or_path,
            core_attn_implementation,
            parallel_state_sp.get_sequence_parallel_group(),
            disable_in_eval=disable_in_eval,
        )
        return parallel_state_sp


__all__ = [
    "TiledFusedLogitsLoss",
    "TiledMLP",
    "UlyssesSPAttentionHF",
    "UlyssesSPDataLoaderAdapter",
    "sequence_tiled_compute",
]
