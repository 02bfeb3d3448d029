"""Models of ours are built without asking for pydantic's plugins."""

import os
from collections.abc import Generator
from contextlib import contextmanager

SWITCH = "PYDANTIC_DISABLE_PLUGINS"


@contextmanager
def without_plugins() -> Generator[None]:
    """Keep pydantic from looking for plugins, as Typer does for its own models.

    The search opens the metadata of every package installed, and no plugin has a say in what
    a ds_config is. What the user set counts; the variable is gone again afterwards, so that
    programs started later do not inherit it.
    """
    if SWITCH in os.environ:
        yield
        return
    os.environ[SWITCH] = "__all__"
    try:
        yield
    finally:
        del os.environ[SWITCH]
