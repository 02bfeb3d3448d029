"""``dsconfig lsp``: the language server for editors."""

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from dsconfig.project.errors import UsageError

INSTALL = 'pip install "dsconfig-zero[lsp]"'


def lsp(
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Communicate over stdin and stdout, as it always does.")
    ] = False,
) -> None:
    """Run the language server: findings while typing, hover, completion, fixes.

    Editors start it and talk to it over stdin and stdout. It reads the settings of the project from
    [tool.dsconfig] in pyproject.toml.
    """
    if find_spec("pygls") is None:
        raise UsageError(f"lsp requires pygls, which is not installed: {INSTALL}")
    # Imported by name because the package is optional.
    import_module("dsconfig.editor.server").create().start_io()
