"""Ulysses sequence parallelism for transformers, of size 1."""

from typing import Any


class UlyssesSPAttentionHF:
    """Registers sequence-parallel attention with transformers, in DeepSpeed."""

    @classmethod
    def register_with_transformers(
        cls,
        model_name_or_path: Any,
        core_attn_implementation: str,
        sequence_parallel_size: int,
        micro_batch_size: int,
        seq_length: int | None = None,
        seq_length_is_variable: bool = True,
        disable_in_eval: bool = False,
        max_length: int | None = None,
    ) -> None:
        """Do nothing for size 1. Raises ValueError for others."""
        del model_name_or_path, core_attn_implementation, micro_batch_size, seq_length
        del seq_length_is_variable, disable_in_eval, max_length
        if sequence_parallel_size != 1:
            raise ValueError(
                f"sequence_parallel_size={sequence_parallel_size}: sequence parallelism is not "
                "supported: use 1 and activation_checkpointing"
            )


__all__ = ["UlyssesSPAttentionHF"]
