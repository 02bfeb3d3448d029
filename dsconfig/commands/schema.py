"""``dsconfig schema``: the JSON Schema of a release, for editors."""

from pathlib import Path
from typing import Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.errors import usage
from dsconfig.commands.writing import write
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.schema import json_schema as schemas

Out = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write here, not to stdout.")
]
All = Annotated[
    Path | None,
    typer.Option(
        "--all", metavar="DIR", help="Write the schemas of all published releases into DIR."
    ),
]


def schema(
    deepspeed_version: options.DeepSpeedVersion = None, output: Out = None, all_to: All = None
) -> None:
    """Print the JSON Schema (draft-07) of a ds_config, for completion and checks in an editor.

    Name it in the file, as "$schema", or in the editor's settings.
    """
    if all_to is not None:
        with usage(f"--all {all_to}"):
            write_published(all_to)
        return
    write(output, schemas.to_text(schemas.json_schema(options.release(deepspeed_version))))


def write_published(folder: Path) -> None:
    """Write one file per published release, and the newest under a name of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas.published().items():
        write(folder / name, text)
