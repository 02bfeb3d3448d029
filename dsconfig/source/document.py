"""Document: the values of a config, their positions, and the reader's diagnostics."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from dsconfig.report import Diagnostic, Range
from dsconfig.source import findings, plain
from dsconfig.source.pointer import MAX_DEPTH

SECTION = "$dsconfig"
"""dsconfig's own block in a config: rules to ignore, and remarks."""
OWN_KEYS = ("$schema", SECTION)
"""Keys for editors and dsconfig; no release of DeepSpeed reads them."""
REMARKS = "remarks"
"""Free text about the config, next to ``ignore``; never read."""


LAUNCH = "$launch"
"""Key of a script's content for its number of ranks (``gpus``) and nodes."""


class Format(StrEnum):
    JSON = "json"
    """Strict JSON, readable by every program."""
    HJSON = "hjson"
    """Readable by DeepSpeed's HJSON parser only: comments, unquoted keys, optional commas."""
    YAML = "yaml"
    PYTHON = "python"
    SHELL = "shell"
    """A script whose training command names or builds a config."""
    BASE64 = "base64"
    DICT = "dict"
    """A dict passed by a program; there is no text."""


class JsonError(NamedTuple):
    """The first strict-JSON error of a text, as Python's ``json`` reports it."""

    range: Range
    message: str


class Span(NamedTuple):
    """Position of an entry. ``key`` is None for the root and for list items."""

    key: Range | None
    value: Range


class Launcher(NamedTuple):
    """What a script passes to ``accelerate launch``, which exports it to the ranks.

    ``settings``: the YAML ``file``; ``options``: those of the command, which take precedence;
    ``variables``: those of accelerate that the script sets, which the others replace.
    """

    settings: Mapping[str, Any] = MappingProxyType({})
    file: str = ""
    options: Mapping[str, Any] = MappingProxyType({})
    variables: Mapping[str, str] = MappingProxyType({})


class Document(NamedTuple):
    """Result of reading a config; user errors become diagnostics, not exceptions.

    ``value``: plain Python data (normally a dict; after a syntax error, what could be recovered).
    ``spans``: position in ``text`` by JSON Pointer; empty if there is no text.
    ``diagnostics``: findings of the reader itself.
    ``is_unreadable``: there is nothing to check (missing, binary, too large, too deep).
    ``is_broken``: there are syntax errors, so rules do not check ``value``.
    ``json_error``: why strict JSON parsers (transformers, accelerate) reject the text, or None.
    ``has_bom``: the file starts with a byte order mark, which ``text`` omits.
    ``placeholders``: pointers to values that another program fills in.
    ``container``: content of the YAML file that embeds or names the config; ``named_in`` is the
    path of one that names it.
    ``opened``: the file that was opened and led to this one, if it is another.
    ``is_generated``: accelerate generates the config from that YAML.
    ``launcher``: what the script that led to this file passes to accelerate.
    ``large_integers``: pointers to integers that no float can hold, if nothing else is broken;
    ``value`` has smaller ones there.
    ``overrides``: pointer and value of each ``--set``, already applied to ``value``.
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
    opened: str | None = None
    is_generated: bool = False
    launcher: Launcher = Launcher()
    overrides: tuple[tuple[str, Any], ...] = ()
    large_integers: tuple[str, ...] = ()

    @property
    def is_template(self) -> bool:
        """Whether another program fills in values."""
        return bool(self.placeholders)

    @property
    def may_ignore(self) -> bool:
        """Whether the text may suppress findings, in the ``$dsconfig`` block or in comments."""
        config: object = self.value
        return (isinstance(config, dict) and SECTION in config) or "dsconfig:" in (self.text or "")

    def range(self, pointer: str, *, key: bool = False) -> Range | None:
        """Return the position of a value or its key, or of the nearest enclosing entry."""
        while True:
            span = self.spans.get(pointer)
            if span is not None:
                return span.key if key and span.key is not None else span.value
            if not pointer:
                return None
            pointer = pointer.rpartition("/")[0]
            key = True


TYPE_NAMES = {"list": "a list", "str": "a string", "bool": "a boolean", "NoneType": "null"}


MAX_LARGE_INTEGERS = 20
"""Integers outside the range of a float that are reported."""


def bounded(document: Document) -> Document:
    """Return the document with a diagnostic for each integer outside the range of a float.

    A smaller integer replaces these in ``value``, so nothing computes with them.
    """
    value, large = plain.without_large_integers(document.value)
    if not large:
        return document
    problems = [
        findings.large_integer(each.pointer, plain.shown(each.value), document.range(each.pointer))
        for each in large[:MAX_LARGE_INTEGERS]
    ]
    return document._replace(
        value=value,
        diagnostics=(*document.diagnostics, *problems),
        is_broken=True,
        large_integers=() if document.is_broken else tuple(each.pointer for each in large),
    )


def finish(document: Document) -> Document:
    """Return the document with the diagnostics common to all formats."""
    document = bounded(document)
    problems = list(document.diagnostics)
    is_object = isinstance(document.value, dict)
    if not is_object:
        kind = TYPE_NAMES.get(type(document.value).__name__, "a number")
        root = document.spans.get("")
        problems.append(findings.not_an_object(kind, root.value if root else None))
    if document.placeholders:
        problems.append(findings.template(len(document.placeholders)))
    is_broken = document.is_broken or not is_object
    return document._replace(diagnostics=tuple(problems), is_broken=is_broken)


def broken(name: str, text: str, form: Format, why: Diagnostic) -> Document:
    """Return a document whose text contains no config to check."""
    return Document(name, {}, form, text, diagnostics=(why,), is_broken=True)


def unreadable(
    name: str, text: str | None, why: Diagnostic, form: Format = Format.HJSON
) -> Document:
    """Return a document that contains only the reason why it cannot be read."""
    return Document(name, {}, form, text, diagnostics=(why,), is_unreadable=True)


def too_deep() -> Diagnostic:
    message = f"nested more than {MAX_DEPTH} levels deep; Python's parsers raise RecursionError"
    return findings.unreadable(message, "a config has three or four levels")


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
"""Top-level keys that configs of other programs rarely have."""


def count_distinctive(keys: Iterable[object]) -> int:
    """Return how many of the keys are distinctive of a ds_config."""
    return sum(isinstance(key, str) and key in DISTINCTIVE_KEYS for key in keys)
