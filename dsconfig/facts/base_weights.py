"""Frozen base weights stored in 4 or 8 bits, as bitsandbytes quantizes them for QLoRA.

Linear layers of the blocks are quantized; embeddings, norms, biases, the output head, and experts
that are one tensor stay in 16 bits: transformers 5.23 replaces ``nn.Linear`` and ``Conv1D`` modules
only, except the output embedding and what is tied to it (``get_keys_to_not_convert`` in
quantizers/base.py). PEFT casts what stays to fp32 (``prepare_model_for_kbit_training``); DeepSpeed
casts it back to 16 bits.
"""

from enum import StrEnum

BLOCK = 64
"""Weights that share one scale (``quantize_4bit`` in bitsandbytes 0.50 functional.py)."""
SCALE_BLOCK = 256
"""Scales that share one fp32 scale under double quantization (the same function)."""


class BaseWeights(StrEnum):
    """How frozen linear layers are stored."""

    FOUR_BIT = "4bit"
    """NF4 with double quantization, as in the QLoRA paper (arXiv:2305.14314, section 3)."""
    EIGHT_BIT = "8bit"
    """LLM.int8 (arXiv:2208.07339): ``Linear8bitLt`` without 16-bit weights."""

    def packed_bytes(self, elements: int) -> int:
        """Return the bytes of a quantized weight: two weights per byte, or one."""
        return -(-elements // 2) if self is BaseWeights.FOUR_BIT else elements

    def constant_bytes(self, elements: int, rows: int) -> int:
        """Return the bytes of its scales, which no ZeRO stage shards.

        4bit: one byte per 64 weights and 4 per 256 of these, 0.127 bits per weight as in the QLoRA
        paper. 8bit: one fp32 scale per output row (``SCB``). Codebooks, below 2 KiB per layer, are
        not counted.
        """
        if self is BaseWeights.EIGHT_BIT:
            return 4 * rows
        scales = -(-elements // BLOCK)
        return scales + 4 * -(-scales // SCALE_BLOCK)

    @property
    def keeps_inputs(self) -> bool:
        """Return whether a frozen layer keeps its input for backward.

        ``MatMul8bitLt`` does (``ctx.tensors``), ``MatMul4Bit`` keeps only the packed weight
        (bitsandbytes 0.50, autograd/_functions.py).
        """
        return self is BaseWeights.EIGHT_BIT

    def remark(self, *, at_stage_3: bool, by_dsengine: bool) -> str:
        """Return what is assumed about the quantized layers."""
        remark = (
            f"{self.label[0].upper()}{self.label[1:]}: linear layers of the blocks are quantized; "
            "embeddings, head and norms stay in 16 bits."
        )
        if at_stage_3 and self is STAGE_3_WITHOUT:
            if by_dsengine:
                return f"{remark} dsengine refuses them at stage 3."
            return f"{remark} At stage 3 they do not train correctly (bitsandbytes issue 1451)."
        if at_stage_3 and not by_dsengine:
            return f"{remark} Stage 3 requires bnb_4bit_quant_storage to be the compute dtype."
        return remark

    @property
    def hyphenated(self) -> str:
        """``4-bit`` or ``8-bit``."""
        return self.replace("bit", "-bit")

    @property
    def label(self) -> str:
        """Return a short description."""
        kind = "NF4, double quantization" if self is BaseWeights.FOUR_BIT else "LLM.int8"
        return f"{self.hyphenated} base weights ({kind})"


NAMES = tuple(map(str, BaseWeights))
STAGE_3_WITHOUT = BaseWeights.EIGHT_BIT
"""Does not train correctly at stage 3 (bitsandbytes-foundation/bitsandbytes#1451, open;
huggingface/accelerate#3730). 4bit works if ``bnb_4bit_quant_storage`` is the compute dtype (PEFT
documentation, "Use PEFT QLoRA and DeepSpeed with ZeRO3")."""
