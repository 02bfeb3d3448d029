"""Edits to entries of a text that keep commas, comments and line ends valid."""

import json
from collections.abc import Mapping
from typing import Any

from dsconfig.report import Edit, Position
from dsconfig.source.document import Span
from dsconfig.source.positions import LINE_END, line_index
from dsconfig.source.tokens import TokenError, end_of_line, skip

INDENT = "    "


def shifted(text: str, indent: str) -> str:
    """Indent all lines except the first."""
    return text.replace("\n", f"\n{indent}")


def is_comment(tail: str) -> bool:
    """Return whether the rest of a line is a single comment."""
    closed = tail.startswith("/*") and tail.find("*/") == len(tail) - 2
    return closed or tail.startswith(("//", "#"))


class Layout:
    """A text and the positions of its entries."""

    def __init__(self, text: str, places: Mapping[str, Span]) -> None:
        self.text = text
        self.places = places
        self.lines = line_index(text, places)

    # --- queries ------------------------------------------------------------------------

    def offset(self, position: Position) -> int:
        return self.lines.offset(position)

    def at(self, position: Position) -> str:
        offset = self.offset(position)
        return self.text[offset : offset + 1]

    def bounds(self, pointer: str) -> tuple[int, int]:
        """Return the offsets of an entry, including its key."""
        span = self.places[pointer]
        return self.offset((span.key or span.value).start), self.offset(span.value.end)

    def children(self, parent: str) -> list[str]:
        """Return the entries of a container, in order of position."""
        depth = parent.count("/") + 1
        inside = [
            pointer
            for pointer in self.places
            if pointer.startswith(f"{parent}/") and pointer.count("/") == depth
        ]
        return sorted(inside, key=self.bounds)

    def comma_behind(self, offset: int) -> int | None:
        """Return the offset of the next comma after spaces and comments, else None."""
        try:
            following = skip(self.text, offset)
        except TokenError:
            return None
        return following if self.text[following : following + 1] == "," else None

    def is_bare_text(self, pointer: str) -> bool:
        """Return whether the value is an unquoted string, which would include a comma."""
        start = self.offset(self.places[pointer].value.start)
        end = self.offset(self.places[pointer].value.end)
        raw = self.text[start:end]
        if raw[:1] in ('"', "'", "{", "["):
            return False
        try:
            json.loads(raw)
        except ValueError:
            return True
        return False

    def indentation(self, offset: int) -> str:
        """Return the indentation of the line of an offset."""
        start = self._line_start(offset)
        line = self.text[start:offset]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def step(self) -> str:
        """Return the indentation of one level."""
        for pointer in self.places:
            if pointer.count("/") == 1:
                blanks = self.indentation(self.bounds(pointer)[0])
                if blanks:
                    return blanks
        return INDENT

    def render(self, value: Any) -> str:
        """Render a value as JSON; objects are multi-line if the file is.

        Lines after the first start at column zero, for ``shifted``.
        """
        if not isinstance(value, dict) or not value or not LINE_END.search(self.text.strip()):
            return json.dumps(value, ensure_ascii=False)
        return json.dumps(value, ensure_ascii=False, indent=self.step())

    def written(self, pointer: str, value: Any) -> str:
        """Return a value as written, with comments, starting at column zero."""
        span = self.places[pointer].value
        start = self.offset(span.start)
        if self.is_bare_text(pointer):
            return json.dumps(value, ensure_ascii=False)
        first, *more = LINE_END.split(self.text[start : self.offset(span.end)])
        indent = self.indentation(start)
        return "\n".join((first, *(line.removeprefix(indent) for line in more)))

    def indented(self, pointer: str = "", indent: str = "") -> str:
        """Return a value with one entry of an object per line, and everything else as written."""
        children = self.children(pointer)
        start, end = self.places[pointer].value
        text = self.text[self.offset(start) : self.offset(end)]
        if not text.startswith("{") or not children:
            return text
        inner = indent + INDENT
        lines = [f"{inner}{self._key(child)}: {self.indented(child, inner)}" for child in children]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"

    def _key(self, pointer: str) -> str:
        key = self.places[pointer].key
        assert key is not None, pointer
        return self.text[self.offset(key.start) : self.offset(key.end)]

    def wrapped(self, key: str, entry: str) -> str:
        """Return an object with one entry as the value of a key."""
        name = json.dumps(key, ensure_ascii=False)
        if "\n" not in entry:
            return f"{name}: {{{entry}}}"
        step = self.step()
        return f"{name}: {{\n{step}{shifted(entry, step)}\n}}"

    def _line_start(self, offset: int) -> int:
        return self.lines.starts[self.lines.position(offset).line - 1]

    def _edit(self, start: int, end: int, content: str = "") -> Edit:
        return Edit(self.lines.range(start, end), content)

    # --- deletion -----------------------------------------------------------------------

    def deletion(self, pointer: str, *, keep_comment: bool = False) -> tuple[Edit, ...]:
        """Delete an entry with its comma and line, and its trailing comment unless kept."""
        start, end = self.bounds(pointer)
        comma = self.comma_behind(end)
        edits: list[Edit] = []
        if comma is not None:
            end = comma + 1
        else:
            siblings = self.children(pointer.rpartition("/")[0])
            earlier = siblings[: siblings.index(pointer)]
            before = self.comma_behind(self.bounds(earlier[-1])[1]) if earlier else None
            if before is not None:
                if (
                    self.text[before + 1 : start].strip() == ""
                    and "\n" not in self.text[before:start]
                ):
                    return (self._edit(before, end),)
                edits.append(self._edit(before, before + 1))
        return (*edits, self._edit(*self._full_lines(start, end, keep_comment)))

    def _full_lines(self, start: int, end: int, keep_comment: bool) -> tuple[int, int]:
        """Extend a range to full lines if they contain nothing else."""
        tail = self.text[end : end_of_line(self.text, end)].strip()
        line_start = self._line_start(start)
        alone = self.text[line_start:start].strip() == ""
        if alone and (not tail or (is_comment(tail) and not keep_comment)):
            line = self.lines.position(end).line
            after = self.lines.starts[line] if line < len(self.lines.starts) else len(self.text)
            return line_start, after
        while self.text[end : end + 1] in (" ", "\t") and not alone:
            end += 1
        return start, end

    # --- insertion ----------------------------------------------------------------------

    def new_value(self, pointer: str, value: Any) -> tuple[Edit, ...]:
        """Replace a value, as JSON."""
        place = self.places[pointer].value
        indent = self.indentation(self.offset(place.start))
        return (Edit(place, shifted(self.render(value), indent)),)

    def replacement(self, pointer: str, entry: str) -> tuple[Edit, ...]:
        """Replace an entry, both key and value."""
        start, end = self.bounds(pointer)
        return (self._edit(start, end, shifted(entry, self.indentation(start))),)

    def insertion(self, parent: str, entry: str) -> tuple[Edit, ...]:
        """Append an entry, ``"key": value``, to an object."""
        if parent not in self.places:
            return ()
        children = self.children(parent)
        if not children:
            return self._first_entry(parent, entry)
        last = children[-1]
        start, end = self.bounds(last)
        opener = self.offset(self.places[parent].value.start)
        comma = self.comma_behind(end)
        indent = self.indentation(start)
        entry = shifted(entry, indent)
        if self._line_start(start) == self._line_start(opener) and not self.is_bare_text(last):
            return (self._edit(end, end, f", {entry}"),)
        after = end if comma is None else comma + 1
        line_end = end_of_line(self.text, after)
        if is_comment(self.text[after:line_end].strip()):
            after = line_end
        if comma is not None or self.is_bare_text(last):
            tail = "," if comma is not None else ""
            return (self._edit(after, after, f"\n{indent}{entry}{tail}"),)
        if after == end:
            return (self._edit(end, end, f",\n{indent}{entry}"),)
        return self._edit(end, end, ","), self._edit(after, after, f"\n{indent}{entry}")

    def _first_entry(self, parent: str, entry: str) -> tuple[Edit, ...]:
        opener = self.offset(self.places[parent].value.start)
        if self.text[opener : opener + 1] != "{":
            return ()
        inside = opener + 1
        end = self.offset(self.places[parent].value.end) - 1
        indent = self.indentation(opener)
        if "\n" not in self.text[inside:end]:
            return (self._edit(inside, inside, shifted(entry, indent)),)
        indent += self.step()
        return (self._edit(inside, inside, f"\n{indent}{shifted(entry, indent)}"),)
