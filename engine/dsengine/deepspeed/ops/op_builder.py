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


class FusedAdamBuilder(OpBuilder):
    NAME = "fused_adam"
    OFFERED = True


class CPUAdamBuilder(OpBuilder):
    NAME = "cpu_adam"
    OFFERED = True


class CPUAdagradBuilder(OpBuilder):
    NAME = "cpu_adagrad"
    OFFERED = True


class FusedLionBuilder(OpBuilder):
    NAME = "fused_lion"
    OFFERED = True


class CPULionBuilder(OpBuilder):
    NAME = "cpu_lion"
    OFFERED = True


class UtilsBuilder(OpBuilder):
    NAME = "utils"


class AsyncIOBuilder(OpBuilder):
    NAME = "async_io"
    OFFERED = True


class GDSBuilder(OpBuilder):
    NAME = "gds"


class FusedLambBuilder(OpBuilder):
    NAME = "fused_lamb"


class FPQuantizerBuilder(OpBuilder):
    NAME = "fp_quantizer"


class QuantizerBuilder(OpBuilder):
    NAME = "quantizer"


class InferenceBuilder(OpBuilder):
    NAME = "transformer_inference"


class TransformerBuilder(OpBuilder):
    NAME = "transformer"


class RandomLTDBuilder(OpBuilder):
    NAME = "random_ltd"


class EvoformerAttnBuilder(OpBuilder):
    NAME = "evoformer_attn"


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
