"""Text in and out: positions, HJSON and JSON, edits that keep comments and layout.

reading        what names or holds a config: a path, standard input, text, base64, a dict
from_text      HJSON or JSON text as a document, and why strict JSON readers refuse it
from_yaml      the config in an accelerate or Trainer YAML, or the file it names
yaml_numbers   PyYAML's safe loader with the numbers of JSON
from_python    the config literal in a Python file
document       what was read: values, places, findings; what every format shares
hjson          text to values and places, going on after a mistake
cursor         where one pass over a text stands, what it yields, how mistakes are told
tokens         the lexical rules of hjson
positions      offsets as lines and columns, places of entries
pointer        paths in plain data, and the one look-up
templates      placeholders that a launcher fills in
findings       what the reader says, one function for each code
ignores        findings that a file asks not to hear of
edit, layout   edits from pointers; commas, comments and line ends around an entry
override       ``--set path.to.key=value``
"""

from dsconfig.source.document import Document, Format, JsonError, Span
from dsconfig.source.override import with_overrides
from dsconfig.source.reading import read

__all__ = ["Document", "Format", "JsonError", "Span", "read", "with_overrides"]
