"""Replacement of the package ``deepspeed``, including the checks of frameworks.

transformers and accelerate check for a module spec and for distribution metadata, and compare the
release with those they support. ``replace_deepspeed`` provides both.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from dsengine.deepspeed.importing import PACKAGE, AliasLoader, spec_of

NAME = "deepspeed"
CHECKERS = ("accelerate", "transformers")
"""Packages that check only once, when imported, whether DeepSpeed is available."""


class _Metadata(Distribution):
    """The distribution metadata of ``deepspeed``."""

    def read_text(self, filename: str) -> str | None:
        release = import_module(PACKAGE).__version__
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {release}\n"
            "Summary: dsengine, replacing DeepSpeed in this process\n",
            "top_level.txt": f"{NAME}\n",
        }
        return texts.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return Path(import_module(PACKAGE).__path__[0]).parent / path


class _ReplacementFinder(DistributionFinder):
    """Resolves ``deepspeed`` and its submodules to modules of ``dsengine``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != NAME:
            return None
        real = spec_of(f"{PACKAGE}.{name}" if name else PACKAGE)
        return None if real is None else AliasLoader.spec(fullname, real)

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        name = None if context is None else context.name
        if name is None or name.lower() == NAME:
            yield _Metadata()


def replace_deepspeed() -> None:
    """Make ``deepspeed`` an alias of ``dsengine``, and print so on rank 0. Idempotent.

    Raises ImportError if DeepSpeed has already been imported, or found to be missing.
    """
    if any(isinstance(finder, _ReplacementFinder) for finder in sys.meta_path):
        return
    if NAME in sys.modules:
        raise ImportError(
            "deepspeed is already imported, so that dsengine cannot replace it: put "
            "`import dsengine.as_deepspeed` before all other imports, or start with "
            "`python -m dsengine.as_deepspeed`"
        )
    imported = [name for name in CHECKERS if name in sys.modules]
    if imported and spec_of(NAME) is None:
        raise ImportError(
            f"{imported[0]} is already imported and has found no deepspeed: put "
            "`import dsengine.as_deepspeed` before all other imports"
        )
    sys.meta_path.insert(0, _ReplacementFinder())
    if os.environ.get("RANK", "0") == "0":
        release = import_module(PACKAGE).__version__
        print(f"dsengine replaces deepspeed ({release})", file=sys.stderr, flush=True)
