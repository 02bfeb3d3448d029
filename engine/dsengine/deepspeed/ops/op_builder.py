"""DeepSpeed's kernel builders, for programs that check availability before they use a kernel.

There is nothing to build: torch's own kernels are used, if there is an equivalent.
``is_compatible`` returns whether there is one, and ``load`` raises.
"""

from typing import Any, ClassVar

from dsengine.deepspeed.refusals import KERNELS


class OpBuilder:
    """Builder of one DeepSpeed kernel."""

    NAME: ClassVar[str]
    SUPPORTED: ClassVar[bool] = False

    def __init_subclass__(cls, name: str = "", supported: bool = False) -> None:
        if name:
            cls.NAME, cls.SUPPORTED = name, supported

    @property
    def name(self) -> str:
        return self.NAME

    def is_compatible(self, verbose: bool = False) -> bool:
        """Return whether the kernel's function is supported, by whatever implementation."""
        del verbose
        return self.SUPPORTED

    def load(self, verbose: bool = True) -> Any:
        """Raise NotImplementedError: the optimizers of ``dsengine.ops`` need no kernels."""
        del verbose
        raise NotImplementedError(f"dsengine has no kernel {self.NAME}: {KERNELS}")


class FusedAdamBuilder(OpBuilder, name="fused_adam", supported=True): ...


class CPUAdamBuilder(OpBuilder, name="cpu_adam", supported=True): ...


class CPUAdagradBuilder(OpBuilder, name="cpu_adagrad", supported=True): ...


class FusedLionBuilder(OpBuilder, name="fused_lion", supported=True): ...


class CPULionBuilder(OpBuilder, name="cpu_lion", supported=True): ...


class UtilsBuilder(OpBuilder, name="utils"): ...


class AsyncIOBuilder(OpBuilder, name="async_io", supported=True): ...


class GDSBuilder(OpBuilder, name="gds"): ...


class FusedLambBuilder(OpBuilder, name="fused_lamb"): ...


class FPQuantizerBuilder(OpBuilder, name="fp_quantizer"): ...


class QuantizerBuilder(OpBuilder, name="quantizer"): ...


class InferenceBuilder(OpBuilder, name="transformer_inference"): ...


class TransformerBuilder(OpBuilder, name="transformer"): ...


class RandomLTDBuilder(OpBuilder, name="random_ltd"): ...


class EvoformerAttnBuilder(OpBuilder, name="evoformer_attn"): ...


ALL_OPS: dict[str, OpBuilder] = {builder.NAME: builder() for builder in OpBuilder.__subclasses__()}
"""A builder of each kernel, by name."""

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
