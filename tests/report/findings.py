"""Findings to render: one of each kind; how a viewer reads a message of SARIF."""

import re

from dsconfig.report import (
    Applicability,
    Diagnostic,
    Edit,
    Effect,
    FileReport,
    Fix,
    Position,
    Range,
    Report,
)

TEXT = '{\n\t"stage": "three", // \u4e2d\u6587\n  "zero": {\n  }\n}\n'


def place(line: int, column: int, end_line: int, end_column: int) -> Range:
    return Range(Position(line, column), Position(end_line, end_column))


WRONG = Diagnostic(
    code="DSC412",
    name="wrong-stage",
    effect=Effect.REFUSED,
    message='stage is "three": DeepSpeed stops',
    pointer="/stage",
    range=place(2, 11, 2, 18),
    runtimes=("deepspeed", "dsengine"),
    help="write 3",
    fix=Fix(Applicability.SAFE, (Edit(place(2, 11, 2, 18), "3"),)),
)
IDLE = Diagnostic(
    code="DSC420",
    name="idle-block",
    effect=Effect.INERT,
    message="zero has no effect\n100%, really: \x1b[31m",
    pointer="/zero",
    range=place(3, 11, 4, 4),
    fix=Fix(Applicability.UNSAFE, (Edit(place(3, 3, 4, 4), ""),)),
)
NOTE = Diagnostic(
    code="DSC001",
    name="unplaced",
    effect=Effect.NOTE,
    message="the file works as written",
)
LATE = Diagnostic(
    code="DSC601", name="late", effect=Effect.REFUSED, message="lone \ud800 surrogate", late=True
)
FILES = (
    FileReport("configs/a b,c:d.json", TEXT, Report((WRONG, IDLE, NOTE, LATE))),
    FileReport("clean.json", "{}", Report(())),
)

LINK = re.compile(r"\[((?:[^\\\[\]]|\\[\\\[\]])*)\]\(([^)]*)\)")


def read_sarif(text: str) -> tuple[str, list[str]]:
    """Return a message as a viewer shows it, and the targets of its links.

    Escapes are read in messages that may have links; others have none to escape.
    """
    if "](" not in text:
        return text, []
    targets = [target for _, target in LINK.findall(text)]
    shown = LINK.sub(r"\1", text)
    return re.sub(r"\\([\\\[\]])", r"\1", shown), targets
