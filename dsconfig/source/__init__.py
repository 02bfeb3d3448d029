"""Text in and out: positions, HJSON and JSON, edits that keep comments and layout."""

from dsconfig.source.document import Document, Format, Span

__all__ = ["Document", "Format", "Span"]
