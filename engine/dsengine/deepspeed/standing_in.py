"""``deepspeed`` itself: the name by which frameworks import, and the questions they ask before.

transformers and accelerate look for a module spec and for distribution metadata, and compare the
release with those they know. Both answers come from here once ``stand_in`` was called.
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

from dsengine.deepspeed.importing import PACKAGE, Standing, spec_of

NAME = "deepspeed"
ASKING = ("accelerate", "transformers")
"""Programs that ask once, while they are imported, whether there is a DeepSpeed."""


class _Metadata(Distribution):
    """What ``importlib.metadata`` says of the distribution ``deepspeed``."""

    def read_text(self, filename: str) -> str | None:
        release = import_module(PACKAGE).__version__
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {release}\n"
            "Summary: dsengine, which stands in for DeepSpeed in this process\n",
            "top_level.txt": f"{NAME}\n",
        }
        return texts.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return Path(import_module(PACKAGE).__path__[0]).parent / path


class _StandIn(DistributionFinder):
    """Gives ``deepspeed`` and all below it the modules of ``dsengine``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != NAME:
            return None
        real = spec_of(f"{PACKAGE}.{name}" if name else PACKAGE)
        return None if real is None else Standing.spec(fullname, real)

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        asked = None if context is None else context.name
        if asked is None or asked.lower() == NAME:
            yield _Metadata()


def stand_in() -> None:
    """From now on, let ``deepspeed`` be ``dsengine``, and say so on rank 0; again is nothing.

    Raises ImportError when DeepSpeed is imported already, or was found to be missing.
    """
    if any(isinstance(each, _StandIn) for each in sys.meta_path):
        return
    if NAME in sys.modules:
        raise ImportError(
            "deepspeed is imported already, and dsengine cannot take its place any more: put "
            "`import dsengine.as_deepspeed` before every other import, or start with "
            "`python -m dsengine.as_deepspeed`"
        )
    asked = [each for each in ASKING if each in sys.modules]
    if asked and spec_of(NAME) is None:
        raise ImportError(
            f"{asked[0]} is imported already, and has found that there is no deepspeed: put "
            "`import dsengine.as_deepspeed` before every other import"
        )
    sys.meta_path.insert(0, _StandIn())
    if os.environ.get("RANK", "0") == "0":
        release = import_module(PACKAGE).__version__
        print(f"dsengine stands in for deepspeed ({release})", file=sys.stderr, flush=True)
