"""Accelerators: from the catalogue by name, or this machine's processor."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dsconfig.facts import catalogues
from dsconfig.facts.machine import DeviceFacts

_KIND_OF_VENDOR = {"nvidia": "cuda", "amd": "rocm", "intel": "hpu"}
_REMEDY = "Name a card such as a100-80gb, or give --device-memory with any name"


@lru_cache(maxsize=256)
def from_catalogue(name: str) -> DeviceFacts:
    """The card whose name holds every part of ``name`` (``a100-80gb``, ``h100``, ``V100 16GB``).

    Where several do, the first of the catalogue is taken (the SXM form stands before PCIe).
    Raises FactError, with the nearest names, when none does.
    """
    wanted = catalogues.words(name)
    exact = [
        card
        for card in catalogues.gpus()
        if catalogues.squeezed(card["name"]) == catalogues.squeezed(name)
    ]
    found = exact or [card for card in catalogues.gpus() if _matches(wanted, card)]
    if not found:
        known = (card["name"] for card in catalogues.gpus())
        raise catalogues.unknown("--device", name, known, _REMEDY)
    return _facts(found[0])


def _matches(wanted: tuple[str, ...], card: Mapping[str, Any]) -> bool:
    have = catalogues.words(card["name"])
    size = f"{card['memory_nominal_gb']}gb"
    telling = set(wanted) - _NOISE
    return bool(telling) and all(
        part == size or any(_names(part, word) for word in have) for part in telling
    )


# What drivers and vendors put around the name of a card.
_MAKERS = frozenset({"nvidia", "amd", "intel", "tesla", "geforce", "instinct", "gpu"})
_NOISE = _MAKERS | {"hbm2", "hbm2e", "hbm3", "hbm3e"}


def _names(part: str, word: str) -> bool:
    """``80g`` and ``80`` name ``80gb``; ``sxm`` names ``sxm4``; ``a100`` only ``a100``."""
    if part == word:
        return True
    if word.endswith("gb"):
        return part in (word[:-1], word[:-2])
    return part.isalpha() and word.startswith(part)


def _facts(card: Mapping[str, Any]) -> DeviceFacts:
    # Vendors print links as both directions summed; our facts hold one direction.
    link, pcie = card["interconnect_gb_s"], card["pcie_gb_s"]
    return DeviceFacts(
        name=card["name"],
        kind=_KIND_OF_VENDOR[card["vendor"]],
        memory_bytes=card["memory_bytes_usable"],
        bf16=card["bf16"],
        tflops_16bit=card["tflops_bf16_dense"] or card["tflops_fp16_dense"],
        memory_gb_per_second=card["memory_gb_s"],
        link_gb_per_second=link / 2 if link else None,
        pcie_gb_per_second=pcie / 2 if pcie else None,
        compute_capability=card["compute_capability"],
    )
