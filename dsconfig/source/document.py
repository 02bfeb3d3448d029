"""A config as it was written: its values, where each stands, and what the reader found."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from dsconfig.report import Diagnostic, Range
from dsconfig.source import findings
from dsconfig.source.pointer import MAX_DEPTH

SECTION = "$dsconfig"
"""A block of ours in the config: findings to ignore, and remarks."""
OWN_KEYS = ("$schema", SECTION)
"""What a config holds for its readers; no release of DeepSpeed knows them."""
REMARKS = "remarks"
"""What people write about their config, beside ``ignore``: read by nobody."""


class Format(StrEnum):
    JSON = "json"
    """Strict JSON, which every program reads."""
    HJSON = "hjson"
    """Needs DeepSpeed's HJSON reader: comments, unquoted keys, missing or trailing commas."""
    YAML = "yaml"
    PYTHON = "python"
    BASE64 = "base64"
    DICT = "dict"
    """Values handed over by a program; there is no text."""


class JsonError(NamedTuple):
    """The first place where a text is not strict JSON, as Python's ``json`` sees it."""

    range: Range
    message: str


class Span(NamedTuple):
    """Where one entry stands. ``key`` is None for the root and for items of a list."""

    key: Range | None
    value: Range


class Document(NamedTuple):
    """The result of reading; never partial by exception.

    ``value`` is plain Python data (normally a dict; whatever could be recovered after a
    syntax error). ``spans`` maps each JSON Pointer to its place in ``text``; it is empty
    where there is no text. ``diagnostics`` are the findings of the reader itself.

    ``is_unreadable``: there is nothing to judge (missing, binary, too large, too deep).
    ``is_broken``: syntax errors; ``value`` is a guess, and rules should not judge it.
    ``json_error``: why programs that read strict JSON (transformers, accelerate) refuse the
    text; None where they read it. ``has_bom``: the file starts with a byte order mark, which
    ``text`` leaves out. ``placeholders``: pointers whose value some other program
    will fill in. ``container``: the settings of the YAML that holds the config or names it,
    ``named_in`` the name of one that names it.
    ``is_generated``: the config is what accelerate makes of that YAML.
    """

    name: str
    value: Any
    format: Format
    text: str | None = None
    spans: Mapping[str, Span] = MappingProxyType({})
    diagnostics: tuple[Diagnostic, ...] = ()
    placeholders: frozenset[str] = frozenset()
    json_error: JsonError | None = None
    has_bom: bool = False
    is_unreadable: bool = False
    is_broken: bool = False
    container: Mapping[str, Any] = MappingProxyType({})
    named_in: str | None = None
    is_generated: bool = False

    @property
    def is_template(self) -> bool:
        """Whether some other program will fill in a value."""
        return bool(self.placeholders)

    @property
    def may_ignore(self) -> bool:
        """Whether findings to ignore may be named, in the section or in comments."""
        held: object = self.value
        return (isinstance(held, dict) and SECTION in held) or "dsconfig:" in (self.text or "")

    def range(self, pointer: str, *, key: bool = False) -> Range | None:
        """The place of a value (or of its key); of the nearest enclosing entry if it is absent."""
        while True:
            span = self.spans.get(pointer)
            if span is not None:
                return span.key if key and span.key is not None else span.value
            if not pointer:
                return None
            pointer = pointer.rpartition("/")[0]
            key = True


KINDS = {"list": "a list", "str": "a text", "bool": "a switch", "NoneType": "null"}


def finish(document: Document) -> Document:
    """The document with the findings that every format shares."""
    found = list(document.diagnostics)
    is_object = isinstance(document.value, dict)
    if not is_object:
        kind = KINDS.get(type(document.value).__name__, "a number")
        root = document.spans.get("")
        found.append(findings.not_an_object(kind, root.value if root else None))
    if document.placeholders:
        found.append(findings.template(len(document.placeholders)))
    is_broken = document.is_broken or not is_object
    return document._replace(diagnostics=tuple(found), is_broken=is_broken)


def broken(name: str, text: str, form: Format, why: Diagnostic) -> Document:
    """A document whose text was read, and in which there is no config to judge."""
    return Document(name, {}, form, text, diagnostics=(why,), is_broken=True)


def unreadable(
    name: str, text: str | None, why: Diagnostic, form: Format = Format.HJSON
) -> Document:
    """A document that holds nothing but the reason."""
    return Document(name, {}, form, text, diagnostics=(why,), is_unreadable=True)


def too_deep() -> Diagnostic:
    message = (
        f"this is nested more than {MAX_DEPTH} levels deep; Python's readers stop with an error"
    )
    return findings.unreadable(message, "a config needs three or four levels")


DISTINCTIVE_KEYS = frozenset(
    (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "zero_optimization",
        "zero_allow_untested_optimizer",
        "gradient_clipping",
        "steps_per_print",
        "wall_clock_breakdown",
        "activation_checkpointing",
        "fp16",
        "bf16",
        "flops_profiler",
        "communication_data_type",
        "prescale_gradients",
    )
)
"""Top-level keys that other programs' configs seldom have."""


def count_distinctive(keys: Iterable[object]) -> int:
    """How many of the keys speak for a ds_config."""
    return sum(isinstance(key, str) and key in DISTINCTIVE_KEYS for key in keys)
