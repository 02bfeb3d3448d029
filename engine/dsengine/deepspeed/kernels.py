"""DeepSpeed's kernel builders and build information, for programs that check availability.

There is nothing to build: torch's own kernels are used, if there is an equivalent.
``is_compatible`` returns whether there is one, and ``load`` raises.
"""

from typing import Any, ClassVar

import torch

from dsconfig.features.table import FEATURES


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
        raise NotImplementedError(f"{self.NAME}: {FEATURES['kernels'].text}")


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


def _nccl() -> tuple[int, ...]:
    """Return the NCCL release that torch was built with; (0, 0) without."""
    cuda: Any = torch.cuda
    return cuda.nccl.version() if cuda.is_available() else (0, 0)


git_hash = git_branch = None
compatible_ops = {name: op.is_compatible() for name, op in ALL_OPS.items()}
"""By kernel name, whether its function is supported."""
installed_ops = dict.fromkeys(compatible_ops, False)
"""No kernel is prebuilt; ``compatible_ops`` contains what is supported."""


def __getattr__(name: str) -> Any:
    """Return ``torch_info`` when it is read: bf16 support initializes CUDA."""
    if name != "torch_info":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return {
        "version": ".".join(torch.__version__.split(".")[:2]),
        "cuda_version": torch.version.cuda or "0.0",
        "nccl_version": ".".join(map(str, _nccl()[:2])),
        "hip_version": torch.version.hip or "0.0",
        "bf16_support": not torch.cuda.is_available() or torch.cuda.is_bf16_supported(),
    }
