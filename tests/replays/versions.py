"""Replay which releases load a config: ``accept`` is the result of DeepSpeed's parser.

A case agrees when ``validate``, ``resolve`` and ``plan`` accept or refuse like the parser. A
finding of effect ``refused`` counts unless it is marked ``late``: only the parser was run, so
errors of the engine are not recorded.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dsconfig
from replays import Case
from replays._entry_points import parsed, plan_refuses, refuses


def replay(path: Path) -> Iterator[Case]:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        facts = dsconfig.Facts(world_size=row["world_size"])
        for span in row["ranges"]:
            for version in _inside(span):
                answers = _answers(row["config"], facts, version)
                yield Case(
                    name=f"{row['id']} at {version}",
                    expected=_verdict(not span["accept"]),
                    got=", ".join(
                        f"{name}: {_verdict(refused)}" for name, refused in answers.items()
                    ),
                    agrees=set(answers.values()) == {not span["accept"]},
                )


def _answers(config: Any, facts: dsconfig.Facts, version: str) -> dict[str, bool]:
    report = dsconfig.validate(config, facts, runtime="deepspeed", version=version)
    resolution = parsed(config, facts, version)
    answers = {
        "validate": any(map(refuses, report.diagnostics)),
        "resolve": any(map(refuses, resolution.diagnostics)),
    }
    planned = plan_refuses(resolution, facts)
    return answers if planned is None else {**answers, "plan": planned}


def _inside(span: dict[str, Any]) -> Iterator[str]:
    """Return both ends of a range, and a release in between if there is one."""
    yield span["from"]
    if span["to"] != span["from"]:
        yield span["to"]


def _verdict(refused: bool) -> str:
    return "refuse" if refused else "accept"
