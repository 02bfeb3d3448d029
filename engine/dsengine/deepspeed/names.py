"""Names of DeepSpeed that a module here does not define: found elsewhere, or explained."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path

from dsconfig.features.deepspeed_names import NAMES, refusal
from dsengine.deepspeed.table import MODULES, PACKAGE, canonical, module_of, public_names

REEXPORTS = Path(__file__).parent / "reexports.json"
"""By module, the names that DeepSpeed's module takes from others, with the path of each."""
_SIMILAR = 0.8


def missing(module: str, below: str) -> Callable[[str], object]:
    """Return a ``__getattr__`` for ``module``, which implements ``deepspeed.<below>``.

    It returns submodules, and what DeepSpeed's module takes from others; for other names it raises
    AttributeError with what to use instead.
    """

    def __getattr__(name: str) -> object:
        if not (name.startswith("__") and name.endswith("__")):  # Python looks for many
            path = join(below, name)
            if (submodule := module_of(path)) is not None:
                return import_module(submodule)
            origin = canonical(reexports().get(below, {}).get(name, path))
            with suppress(ImportError, AttributeError):
                if origin != path:
                    return value_of(origin)
            raise AttributeError(explanation(path))
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


def explanation(path: str) -> str:
    """Return the error message for ``deepspeed.<path>``, which does not exist here."""
    above, _, name = path.rpartition(".")
    origin = reexports().get(above, {}).get(name, "")
    reason = refusal(path, origin)
    if reason is not None and (origin or path in NAMES):
        return reason
    private = any(part.startswith("_") for part in path.split("."))
    unknown = (
        f"{PACKAGE} has no deepspeed.{path}, which is private in DeepSpeed"
        if private
        else f"neither {PACKAGE} nor DeepSpeed has deepspeed.{path}"
    )
    similar = nearest(path)
    return (reason or unknown) + (f"; did you mean deepspeed.{similar}?" if similar else "")


def value_of(path: str) -> object:
    """Return the module or object ``deepspeed.<path>``. Raises ImportError or AttributeError."""
    if (module := module_of(path)) is not None:
        return import_module(module)
    above, _, name = path.rpartition(".")
    return getattr(import_module(join(PACKAGE, above)), name)


@cache
def reexports() -> Mapping[str, Mapping[str, str]]:
    return json.loads(REEXPORTS.read_text("utf-8"))


def nearest(path: str) -> str | None:
    """Return the provided name most similar to ``deepspeed.<path>``, preferably in its module."""
    above, _, name = path.rpartition(".")
    if similar := get_close_matches(name, provided().get(above, []), 1, _SIMILAR):
        return join(above, similar[0])
    places = {each: join(module, each) for module, names in provided().items() for each in names}
    similar = get_close_matches(name, places, 1, _SIMILAR)
    return places[similar[0]] if similar else None


@cache
def provided() -> Mapping[str, list[str]]:
    """Return the exports and submodules of each module here, by path below ``deepspeed``."""
    found: dict[str, list[str]] = {"": list(vars(import_module(PACKAGE))["__all__"])}
    for path in MODULES:
        found.setdefault(path, []).extend(public_names(path))
        above, _, name = path.rpartition(".")
        found.setdefault(above, []).append(name)
    return found


def join(above: str, name: str) -> str:
    return f"{above}.{name}" if above else name
