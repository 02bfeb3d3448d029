"""Replacement of the package ``deepspeed``, including the checks of frameworks.

transformers and accelerate check for a module spec and for distribution metadata, and compare the
release with those they support. The finder of ``importing`` provides both. The start-up hook of
``dsengine.startup`` uses it in every process below, ``replace_deepspeed`` in a running one.
"""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any, NoReturn

from dsengine.deepspeed.importing import FINDER, Finder, spec_of
from dsengine.deepspeed.table import PACKAGE
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


def distributions(context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
    """Yield the metadata of ``deepspeed`` if ``context`` looks for it."""
    name = None if context is None else context.name
    # Tools such as pip look into single folders, which do not contain dsengine as deepspeed.
    is_general = context is None or context.path is sys.path
    if is_general and (name is None or name.lower() == NAME):
        yield _Metadata()


def replacing_finder() -> Finder:
    """Let dsengine's finder find ``deepspeed`` too, and return it."""
    FINDER.distributions = distributions
    return FINDER


def replace_deepspeed() -> None:
    """Make ``deepspeed`` an alias of ``dsengine`` in this process. Idempotent.

    Raises ImportError if DeepSpeed has already been imported, or found to be missing; exits
    instead with ``DSENGINE=required``.
    """
    if FINDER.replaces or is_replaced():
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
    if FINDER in sys.meta_path:
        sys.meta_path.remove(FINDER)
    sys.meta_path.insert(0, replacing_finder())


def _refuse(message: str) -> NoReturn:
    if is_required():
        raise SystemExit(f"dsengine: error: {message} ({MODE}={REQUIRED})")
    raise ImportError(message)
