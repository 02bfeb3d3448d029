"""Reading and editing config text: positions, HJSON and JSON, layout-preserving edits.

reading        read(): a path, standard input, text, base64 or a dict
from_text      HJSON or JSON text as a Document, and the first strict-JSON error
from_yaml      the config embedded in, or named by, an accelerate or trainer YAML file
yaml_numbers   PyYAML's safe loader with JSON's number syntax
from_python    the config literal in a Python file
document       Document: values, positions and diagnostics
hjson          HJSON parser with error recovery
cursor         parser state: current offset, open containers, results, errors
tokens         lexical rules of hjson
positions      offsets to lines and columns; positions of entries
pointer        paths in plain data
templates      placeholders that a launcher fills in
findings       diagnostics of the reader, one function per code
ignores        diagnostics that the file suppresses
edit, layout   edits by pointer that keep commas, comments and line ends in order
override       ``--set path.to.key=value``
"""

from dsconfig.source.document import Document, Format, JsonError, Span
from dsconfig.source.override import with_overrides
from dsconfig.source.reading import read

__all__ = ["Document", "Format", "JsonError", "Span", "read", "with_overrides"]
