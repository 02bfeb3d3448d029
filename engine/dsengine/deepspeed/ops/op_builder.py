"""DeepSpeed's builders of kernels, for programs that ask what is there before they use it.

There is nothing to build: what a kernel of DeepSpeed is for is done by torch's own, or not at all.
``is_compatible`` says which, and ``load`` refuses.
"""

from typing import Any, ClassVar

from dsengine.deepspeed.refusals import KERNELS


class OpBuilder:
    """One kernel of DeepSpeed, by name."""

    NAME: ClassVar[str]
    OFFERED: ClassVar[bool] = False

    def __init_subclass__(cls, name: str = "", offered: bool = False) -> None:
        if name:
            cls.NAME, cls.OFFERED = name, offered

    @property
    def name(self) -> str:
        return self.NAME

    def is_compatible(self, verbose: bool = False) -> bool:
        """Return whether what the kernel does is offered, by whatever does it."""
        del verbose
        return self.OFFERED

    def load(self, verbose: bool = True) -> Any:
        """Raises NotImplementedError: the optimizers of ``dsengine.ops`` need no kernels."""
        del verbose
        raise NotImplementedError(f"dsengine has no kernel {self.NAME}: {KERNELS}")


class FusedAdamBuilder(OpBuilder, name="fused_adam", offered=True): ...


class CPUAdamBuilder(OpBuilder, name="cpu_adam", offered=True): ...


class CPUAdagradBuilder(OpBuilder, name="cpu_adagrad", offered=True): ...


class FusedLionBuilder(OpBuilder, name="fused_lion", offered=True): ...


class CPULionBuilder(OpBuilder, name="cpu_lion", offered=True): ...


class UtilsBuilder(OpBuilder, name="utils"): ...


class AsyncIOBuilder(OpBuilder, name="async_io", offered=True): ...


class GDSBuilder(OpBuilder, name="gds"): ...


class FusedLambBuilder(OpBuilder, name="fused_lamb"): ...


class FPQuantizerBuilder(OpBuilder, name="fp_quantizer"): ...


class QuantizerBuilder(OpBuilder, name="quantizer"): ...


class InferenceBuilder(OpBuilder, name="transformer_inference"): ...


class TransformerBuilder(OpBuilder, name="transformer"): ...


class RandomLTDBuilder(OpBuilder, name="random_ltd"): ...


class EvoformerAttnBuilder(OpBuilder, name="evoformer_attn"): ...


ALL_OPS: dict[str, OpBuilder] = {each.NAME: each() for each in OpBuilder.__subclasses__()}
"""By name, a builder of each."""

__all__ = [
    "ALL_OPS",
    "AsyncIOBuilder",
    "CPUAdagradBuilder",
    "CPUAdamBuilder",
    "CPULionBuilder",
    "EvoformerAttnBuilder",
    "FPQuantizerBuilder",
    "FusedAdamBuilder",
    "FusedLambBuilder",
    "FusedLionBuilder",
    "InferenceBuilder",
    "OpBuilder",
    "QuantizerBuilder",
    "RandomLTDBuilder",
    "TransformerBuilder",
    "UtilsBuilder",
]
