"""Which releases load a config: ``accept`` is what DeepSpeed's parser did.

A finding of effect ``refused`` counts unless it is marked ``late``: the parser ran alone, so
what stops only the engine was never seen.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dsconfig
from replays import Case


def replay(path: Path) -> Iterator[Case]:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        facts = dsconfig.Facts(world_size=row["world_size"])
        for span in row["ranges"]:
            for version in _inside(span):
                report = dsconfig.validate(
                    row["config"], facts, runtime="deepspeed", version=version
                )
                accepts = not any(_refuses(found) for found in report.diagnostics)
                yield Case(
                    name=f"{row['id']} at {version}",
                    expected=_said(span["accept"]),
                    got=_said(accepts),
                    agrees=accepts == span["accept"],
                )


def _inside(span: dict[str, Any]) -> Iterator[str]:
    """Both ends of a range, and a release between them where the patch number leaves one."""
    yield span["from"]
    if span["to"] != span["from"]:
        yield span["to"]


def _refuses(found: dsconfig.Diagnostic) -> bool:
    return found.effect is dsconfig.Effect.REFUSED and not found.late


def _said(accepts: bool) -> str:
    return "accept" if accepts else "refuse"
