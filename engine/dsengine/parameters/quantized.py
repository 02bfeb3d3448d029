"""Frozen weights that bitsandbytes has packed into 4 or 8 bits.

[Note: packed bits in shards]
A shard is a parameter of a floating-point dtype. So the bytes of a 4-bit weight, whatever their
``bnb_4bit_quant_storage``, are viewed as numbers of the compute dtype: gathers copy them, nothing
computes with them, and bitsandbytes' kernels read bytes. Its ``quant_state`` (scales and code)
stays on the module, where bitsandbytes looks for it if the parameter, now another object, has none.
A layer with an 8-bit weight keeps the weight itself in another attribute, and torch cannot gather
integers: 8-bit weights, and the few 4-bit ones whose bytes do not divide, are replicated.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dsengine.parameters.names import clean_name
from dsengine.torch_private.modules import parameter_table

_SCALES_4, _SCALES_8 = "absmax", "SCB"
"""Names of the scales of 4-bit and 8-bit weights."""


class QuantizedLayer:
    """A layer of bitsandbytes with a packed weight, under its name in the model."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module: Any = module

    @property
    def is_four_bit(self) -> bool:
        return _four_bit_state(self.module) is not None

    @property
    def bits(self) -> int:
        return 4 if self.is_four_bit else 8

    def constants(self) -> dict[str, Tensor]:
        """Return the tensors with which the weight is decoded, by the names of bitsandbytes."""
        if (state := _four_bit_state(self.module)) is None:
            return {_SCALES_8: _eight_bit_owner(self.module).SCB}
        found = {f"weight.{_SCALES_4}": state.absmax, "weight.quant_map": state.code}
        if state.nested:
            found |= {
                "weight.nested_absmax": state.state2.absmax,
                "weight.nested_quant_map": state.state2.code,
                "weight.nested_offset": state.offset,
            }
        return found

    def view_as(self, dtype: torch.dtype) -> None:
        """View the bytes of a 4-bit weight as ``dtype``, or as bytes if they do not divide."""
        if self.is_four_bit:
            packed = self.module.weight.data.contiguous().flatten().view(torch.uint8)
            divides = packed.numel() % dtype.itemsize == 0
            self.module.weight.data = packed.view(dtype if divides else torch.uint8).view(-1, 1)

    def move_constants(self, device: torch.device) -> None:
        if (state := _four_bit_state(self.module)) is not None:
            state.to(device)
            self.module.quant_state = state
        else:
            owner = _eight_bit_owner(self.module)
            owner.SCB = owner.SCB.to(device)

    def refer_to_weight(self) -> None:
        """Let an 8-bit layer refer to its weight where it is now."""
        if not self.is_four_bit:
            _eight_bit_owner(self.module).CB = self.module.weight.data


def quantized_layers(root: nn.Module) -> Iterator[QuantizedLayer]:
    """Yield the layers with packed weights, each once."""
    for name, module in root.named_modules():
        if _four_bit_state(module) is not None or _eight_bit_owner(module) is not None:
            yield QuantizedLayer(clean_name(name), module)


def base_weights_of(root: nn.Module) -> str | None:
    """Return how the first packed weight is stored, as ``Facts.base_weights`` names it."""
    first = next(quantized_layers(root), None)
    return None if first is None else f"{first.bits}bit"


def quantization_constants(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the constants of all layers by name."""
    for layer in quantized_layers(root):
        for name, tensor in layer.constants().items():
            yield f"{layer.name}.{name}" if layer.name else name, tensor


def packed_names(names: Iterable[str]) -> set[str]:
    """Return those of ``names`` that are packed weights or their constants, not to be cast."""
    given = set(names)
    found: set[str] = set()
    for name in given:
        layer, _, last = name.rpartition(".")
        if last == _SCALES_8:
            found |= {name, f"{layer}.weight" if layer else "weight"}
        elif last == _SCALES_4 and layer in given:
            found |= {layer, *(each for each in given if each.startswith(f"{layer}."))}
    return found & given


def quantize(root: nn.Module, device: torch.device) -> None:
    """Pack the weights of bitsandbytes' layers that are not packed yet, as ``.to(device)`` does."""
    for module in root.modules():
        weight: Any = parameter_table(module).get("weight")
        if weight is None or weight.is_meta or weight.requires_grad:
            continue
        is_open = getattr(weight, "bnb_quantized", True) is False
        if is_open or (getattr(weight, "has_fp16_weights", True) is False and weight.CB is None):
            weight.to(device)


def is_of_bitsandbytes(parameter: Tensor) -> bool:
    """Whether this is a weight that bitsandbytes has packed, or packs once it is moved."""
    return hasattr(parameter, "quant_storage") or hasattr(parameter, "has_fp16_weights")


def _four_bit_state(module: Any) -> Any:
    """Return the ``quant_state`` of a layer with a 4-bit weight, None for other modules."""
    own = vars(module).get("quant_state")
    return own if own is not None else getattr(_weight(module), "quant_state", None)


def _eight_bit_owner(module: Any) -> Any:
    """Return what has the constants of an 8-bit weight, None for other modules.

    The parameter until the first forward, then ``module.state``.
    """
    for owner in (_weight(module), vars(module).get("state")):
        if getattr(owner, "SCB", None) is not None and not owner.has_fp16_weights:
            return owner
    return None


def _weight(module: nn.Module) -> Any:
    return parameter_table(module).get("weight")
