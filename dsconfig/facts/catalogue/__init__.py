"""The catalogues of models and GPUs, with tolerant name lookup."""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, cast

from dsconfig.facts.inputs import FactError

Entry = Mapping[str, Any]
"""One model or GPU."""


@cache
def _read(file: str, collection: str) -> tuple[Mapping[str, Any], ...]:
    text = files("dsconfig.facts").joinpath("catalogue", file).read_text("utf-8")
    return tuple(cast(list[Mapping[str, Any]], json.loads(text)[collection]))


def models() -> tuple[Mapping[str, Any], ...]:
    """Return every model of the catalogue."""
    return _read("models.json", "models")


def gpus() -> tuple[Mapping[str, Any], ...]:
    """Return every accelerator of the catalogue."""
    return _read("gpus.json", "gpus")


def mentions(wanted: Iterable[str], *names: str) -> bool:
    """Return whether each word is part of one of the names, ignoring case and separators."""
    joined = " ".join(map(squeezed, names))
    return all(squeezed(word) in joined for word in wanted)


def words(name: str) -> tuple[str, ...]:
    """Return the parts of a name: ``A100-SXM4-80GB`` is a100, sxm4, 80gb."""
    return tuple(part for part in re.split(r"[^a-z0-9.]+", name.lower()) if part)


def squeezed(name: str) -> str:
    """Return a name without case and separators; the dot distinguishes opt-1.3b from opt-13b."""
    return re.sub(r"[^a-z0-9.]+", "", name.lower())


def unknown(argument: str, name: str, known: Iterable[str], remedy: str) -> FactError:
    """Return the error for an unknown name, with the closest known ones.

    A known name is compared as a whole, and its first words, as many as are typed: h300 is closer
    to H100-SXM than to MI300X.
    """
    from difflib import get_close_matches

    names, wanted = dict[str, str](), squeezed(name)
    for entry in known:
        first = words(entry)[: len(words(name))]
        for part in (squeezed(entry), squeezed("".join(first))):
            names.setdefault(part, entry)
    completions = [key for key in names if wanted and key.startswith(wanted)]
    alike = (*completions, *get_close_matches(wanted, names, n=9, cutoff=0.5))
    near = list(dict.fromkeys(names[hit] for hit in alike))[:3]
    hint = f"; did you mean {', '.join(near)}?" if near else "."
    return FactError(argument, f"{name!r} is not in the catalogue{hint} {remedy}")
