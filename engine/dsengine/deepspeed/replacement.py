"""Replacement of the package ``deepspeed``, including the checks of frameworks.

transformers and accelerate check for a module spec and for distribution metadata, and compare the
release with those they support. ``ReplacementFinder`` provides both. The start-up hook of
``dsengine.startup`` uses it in every process below, ``replace_deepspeed`` in a running one.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dsengine.deepspeed.importing import PACKAGE, AliasLoader, spec_of
from dsengine.startup import DEEPSPEED as NAME
from dsengine.startup import MODE, REQUIRED, is_replaced, is_required

CHECKERS = ("accelerate", "transformers")
"""Packages that check only once, when imported, whether DeepSpeed is available."""


class _Metadata(Distribution):
    """The distribution metadata of ``deepspeed``."""

    def read_text(self, filename: str) -> str | None:
        release = import_module(PACKAGE).__version__
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {release}\n"
            "Summary: dsengine, replacing DeepSpeed\n",
            "top_level.txt": f"{NAME}\n",
        }
        return texts.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return Path(import_module(PACKAGE).__path__[0]).parent / path


class ReplacementFinder(DistributionFinder):
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
        # Tools such as pip look into single folders, which do not contain dsengine as deepspeed.
        is_general = context is None or context.path is sys.path
        if is_general and (name is None or name.lower() == NAME):
            yield _Metadata()


def replace_deepspeed() -> None:
    """Make ``deepspeed`` an alias of ``dsengine`` in this process. Idempotent.

    Raises ImportError if DeepSpeed has already been imported, or found to be missing; exits
    instead with ``DSENGINE=required``.
    """
    if any(isinstance(finder, ReplacementFinder) for finder in sys.meta_path) or is_replaced():
        return
    imported = [name for name in CHECKERS if name in sys.modules]
    if NAME in sys.modules:
        _refuse(
            "deepspeed is already imported, so that dsengine cannot replace it: put "
            "`import dsengine.as_deepspeed` before all other imports, or start with `dsengine`"
        )
    elif imported and spec_of(NAME) is None:
        _refuse(
            f"{imported[0]} is already imported and has found no deepspeed: put "
            "`import dsengine.as_deepspeed` before all other imports, or start with `dsengine`"
        )
    sys.meta_path.insert(0, ReplacementFinder())


def _refuse(message: str) -> NoReturn:
    if is_required():
        raise SystemExit(f"dsengine: error: {message} ({MODE}={REQUIRED})")
    raise ImportError(message)
