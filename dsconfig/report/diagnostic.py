"""A single finding: what is wrong, where, the effect and the fix."""

from enum import StrEnum
from typing import NamedTuple, Self

from dsconfig.report import rule_pages


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Effect(StrEnum):
    """What happens at run time because of a finding; determines the severity."""

    meaning: str
    severity: Severity

    def __new__(cls, word: str, meaning: str, severity: Severity) -> Self:
        effect = str.__new__(cls, word)
        effect._value_ = word
        effect.meaning, effect.severity = meaning, severity
        return effect

    REFUSED = "refused", "the program stops", Severity.ERROR
    ALTERED = "altered", "trains something other than the file specifies", Severity.ERROR
    INERT = "inert", "the setting has no effect", Severity.WARNING
    DEPRECATED = "deprecated", "still works, will be removed", Severity.WARNING
    COSTLY = "costly", "works, but costs memory or time", Severity.WARNING
    NOTE = "note", "works; for information", Severity.INFO


class Position(NamedTuple):
    """A position in a text: 1-based line, 1-based column in code points."""

    line: int
    column: int


class Range(NamedTuple):
    """Half-open range from ``start`` to ``end``."""

    start: Position
    end: Position


class Applicability(StrEnum):
    SAFE = "safe"
    """The edit keeps the meaning of the file, or its obvious intent."""
    UNSAFE = "unsafe"
    """The edit changes what is trained and should be reviewed."""


class Edit(NamedTuple):
    """Replace the text in ``range`` with ``content``."""

    range: Range
    content: str


class Fix(NamedTuple):
    applicability: Applicability
    edits: tuple[Edit, ...]


class Diagnostic(NamedTuple):
    """A finding.

    ``pointer`` is a JSON Pointer (RFC 6901; ``""`` is the file itself). ``runtimes`` are the
    programs the finding applies to (``dsengine``, ``deepspeed``, ``transformers``, ``accelerate``).
    ``severity`` follows from ``effect``.
    """

    code: str
    name: str
    effect: Effect
    message: str
    pointer: str = ""
    range: Range | None = None
    runtimes: tuple[str, ...] = ()
    help: str | None = None
    fix: Fix | None = None
    late: bool = False
    """True if the program refuses only after parsing: during initialization or in a step."""
    file: str | None = None
    """File of ``pointer`` and ``range``, if it is not the checked file."""

    @property
    def severity(self) -> Severity:
        return self.effect.severity

    @property
    def cause(self) -> str:
        """Code, message and help in one line."""
        return f"{self.code} {self.message}" + (f": {self.help}" if self.help else "")

    @property
    def url(self) -> str:
        """The file URI of the installed page of the rule."""
        return rule_pages.url(self.code)
