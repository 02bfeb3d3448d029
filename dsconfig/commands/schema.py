"""``dsconfig schema``: JSON Schema of a ds_config for editors."""

from pathlib import Path
from typing import Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.writing import write
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import usage

with lazy_imports():
    from dsconfig.project import inference
    from dsconfig.schema import json_schema as schemas

Out = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Output file (default: stdout)."),
]
All = Annotated[
    Path | None,
    typer.Option(
        "--all", metavar="DIR", help="Write the schemas of all supported releases to DIR."
    ),
]


def schema(
    deepspeed_version: options.DeepSpeedVersion = None, output: Out = None, all_to: All = None
) -> None:
    """Print the JSON Schema (draft-07) of a ds_config.

    Editors use it for completion and checks: reference it as "$schema" in the file or in the
    settings of the editor.
    """
    if all_to is not None:
        with usage(f"--all {all_to}"):
            write_published(all_to)
        return
    write(output, schemas.to_text(schemas.json_schema(inference.release_of(deepspeed_version))))


def write_published(folder: Path) -> None:
    """Write one file per release, and the newest one also under an unversioned name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas.published().items():
        write(folder / name, text)
