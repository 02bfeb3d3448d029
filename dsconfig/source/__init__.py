"""Text in and out: positions, HJSON and JSON, edits that keep comments and layout."""

from dsconfig.source.document import Departure, Document, Format, Span
from dsconfig.source.override import with_overrides
from dsconfig.source.reading import read

__all__ = ["Departure", "Document", "Format", "Span", "read", "with_overrides"]
