"""Expand the words of a shell script: quotes, variables, arithmetic and simple substitutions."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import translate
from itertools import takewhile
from pathlib import PurePosixPath
from typing import NamedTuple

from dsconfig.source import expressions
from dsconfig.source.shell.printers import PRINTERS
from dsconfig.source.shell.syntax import Chain, Group, Node, Parser, Raw, Simple

LARGEST_VALUE, MOST_WORDS = 2**16, 2**12
"""Limits on a variable and an array, which may contain themselves."""
MOST_NESTED, LONGEST_CUT = 20, 2**9
_PARAMETER = re.compile(r"([#!]?)(\w+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_ONLY_LIST = re.compile(r"\$(?:[@*]|\{(?:@|\w+\[@\])\})\"")
_SPECIAL = re.compile(r"[$`\\]")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BARE = re.compile(r"\$?\{?([A-Za-z_]\w*|\d+(?=\}))\}?|\$(\d)")
_ARITHMETIC = re.compile(r"[\d\s+*/%()<>=!&|-]+")
_GROUPING = re.compile(r"(?<![!<>=])=(?!=)|\*\*|<<|>>|\+\+|--")


class Value(NamedTuple):
    """A text; ``is_unset``: nothing but an unset variable or a parameter that is not passed.

    What is not known keeps its text as written.
    """

    text: str
    is_known: bool = True
    is_unset: bool = False
    place: "tuple[int, int, int, str] | None" = None
    """Where an item of an array is written: start, end, line and file."""


class Word(NamedTuple):
    """A word of a command, and where it is written; ``is_known``: no run decides its value."""

    text: str
    start: int
    end: int
    is_known: bool = True
    line: int = 0
    file: str = ""
    """The script, if it is another one than the first."""


@dataclass(slots=True)
class State:
    """What a shell knows: variables, functions, parameters and its folder."""

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    arrays: dict[str, list[Word]] = field(default_factory=dict[str, "list[Word]"])
    functions: dict[str, list[Node]] = field(default_factory=dict[str, "list[Node]"])
    exported: dict[str, Value] = field(default_factory=dict[str, Value])
    arguments: list[Value] = field(default_factory=list[Value])
    script: str = ""
    folder: str = ""
    has_ended: bool = False

    def assign(self, name: str, value: Value) -> None:
        """Set a variable; of an array, the first item."""
        items = self.arrays.get(name)
        if items is None:
            self.values[name] = value
        else:
            self.arrays[name] = [Word(value.text, 0, 0, value.is_known), *items[1:]]

    def copy(self) -> "State":
        """Return a state whose changes do not change this one."""
        return replace(
            self,
            values=dict(self.values),
            arrays=dict(self.arrays),
            functions=dict(self.functions),
            exported=dict(self.exported),
            arguments=list(self.arguments),
        )

    @property
    def size(self) -> int:
        """Return the number of entries that a copy or merge goes through."""
        return (
            len(self.values)
            + len(self.functions)
            + len(self.exported)
            + len(self.arguments)
            + sum(map(len, self.arrays.values()))
        )

    def merge(self, others: "list[State]") -> None:
        """Keep what holds in all of these states; the rest is not known."""
        first = others[0]
        for name in {name for other in others for name in other.values}:
            known = [other.values.get(name) for other in others]
            value = known[0]
            same = all(each == value for each in known)
            self.values[name] = value if same and value else Value(f"${name}", is_known=False)
        for name in {name for other in others for name in other.arrays}:
            items = [other.arrays.get(name, []) for other in others]
            same = takewhile(_is_equal, zip(*items, strict=False))
            kept = [first for first, *_ in same]
            if any(len(each) > len(kept) for each in items):
                kept.append(Word(f"${{{name}[@]}}", 0, 0, is_known=False))
            self.arrays[name] = kept
        self.exported = {
            name: self.values.get(name, value) for name, value in first.exported.items()
        }
        self.functions |= first.functions


def _is_equal(items: tuple[Word, ...]) -> bool:
    return items.count(items[0]) == len(items)


class Expansion:
    """Expands words in a state; ``read`` returns the text of a file, or None."""

    def __init__(self, state: State, read: "Callable[[str], str | None]", depth: int = 0) -> None:
        self.state = state
        self._read = read
        self.depth = depth

    @property
    def folder(self) -> str:
        return self.state.folder

    @folder.setter
    def folder(self, folder: str) -> None:
        self.state.folder = folder

    def read(self, name: str, /) -> str | None:
        """Return the text of a file, or None."""
        return self._read(name)

    # --- texts

    def joined(self, text: str, *, empty_if_unset: bool = False) -> Value:
        """Return a word as one value, as in an assignment or a test."""
        parts = list(self._parts(text))
        if len(parts) == 1 and parts[0].is_unset:
            return Value("") if empty_if_unset else parts[0]
        if empty_if_unset:
            parts = [Value("") if part.is_unset else part for part in parts]
        value = "".join(part.text for part in parts)
        return Value(value[:LARGEST_VALUE], all(part.is_known for part in parts))

    def heredoc(self, text: str) -> str:
        """Return the text of a here-document with the known variables replaced."""
        pieces: list[str] = []
        at = 0
        while at < len(text):
            letter = text[at]
            if letter == "\\" and text[at + 1 : at + 2] in ("$", "`", "\\", "\n"):
                pieces.append(text[at + 1].strip("\n"))
                at += 2
            elif letter in "$`":
                values, end = self._expansion(text, at)
                known = all(value.is_known for value in values)
                pieces.append(" ".join(v.text for v in values) if known else text[at:end])
                at = end
            else:
                special = _SPECIAL.search(text, at + 1)
                stop = special.start() if special else len(text)
                pieces.append(text[at:stop])
                at = stop
        return "".join(pieces)

    def fields(self, text: str) -> list[Value]:
        """Return the words that a word expands to: several for arrays and unquoted variables."""
        fields: list[Value] = []
        current: Value | None = None

        def add(value: Value) -> None:
            nonlocal current
            before = current or Value("")
            if len(before.text) > LARGEST_VALUE:
                return
            place = value.place if not before.text else None
            known = before.is_known and value.is_known
            current = Value(before.text + value.text, known, place=place)

        for quoted, values in self._pieces(text):
            if quoted:
                for number, value in enumerate(values):
                    if number:
                        fields.append(current or Value(""))
                        current = None
                    add(value)
                continue
            for number, value in enumerate(values):
                parts = value.text.split() if value.is_known else [value.text]
                leads = value.is_known and value.text[:1].isspace()
                if (number or leads) and current is not None:
                    fields.append(current)
                    current = None
                for index, part in enumerate(parts):
                    if index and current is not None:
                        fields.append(current)
                        current = None
                    add(Value(part, value.is_known, place=value.place))
                if parts and value.is_known and value.text[-1:].isspace() and current is not None:
                    fields.append(current)
                    current = None
        if current is not None:
            fields.append(current)
        return [field._replace(text=field.text[:LARGEST_VALUE]) for field in fields[:MOST_WORDS]]

    def _parts(self, text: str) -> Iterator[Value]:
        for _, values in self._pieces(text):
            for number, value in enumerate(values):
                if number:
                    yield Value(" ")
                yield value

    def _pieces(self, text: str) -> Iterator[tuple[bool, list[Value]]]:
        """Yield parts of a word: whether splitting does not apply, and its values."""
        at = 0
        while at < len(text):
            letter = text[at]
            if letter == "'" or text.startswith("$'", at):
                begin = at + (1 if letter == "'" else 2)
                end = text.find("'", begin)
                end = len(text) if end < 0 else end
                yield True, [Value(text[begin:end])]
                at = end + 1
            elif letter == '"' or text.startswith('$"', at):
                at += 1 if letter == '"' else 2
                yield True, [Value("")] if not self._has_list(text, at) else []
                while at < len(text) and text[at] != '"':
                    if text[at] == "\\":
                        following = text[at + 1 : at + 2]
                        kept = following if following in ('"', "\\", "$", "`") else "\\" + following
                        yield True, [Value("" if following == "\n" else kept)]
                        at += 2
                    elif text[at] in "$`":
                        values, at = self._expansion(text, at)
                        yield True, values
                    else:
                        end = at
                        while end < len(text) and text[end] not in '"\\$`':
                            end += 1
                        yield True, [Value(text[at:end])]
                        at = end
                at += 1
            elif letter == "\\":
                following = text[at + 1 : at + 2]
                yield True, [Value("" if following in ("\n", "\r") else following)]
                at += 2
            elif letter in "$`":
                values, at = self._expansion(text, at)
                yield False, values
            else:
                end = at
                while end < len(text) and text[end] not in "'\"\\$`":
                    end += 1
                yield True, [Value(text[at:end])]
                at = end

    def _has_list(self, text: str, at: int) -> bool:
        """Return whether a quoted text is nothing but a list, which may have no item at all."""
        return _ONLY_LIST.match(text, at) is not None

    # --- variables

    def _expansion(self, text: str, at: int) -> tuple[list[Value], int]:
        """Return the values of ``$...`` or a backquoted command, and where it ends."""
        if text[at] == "`":
            end = text.find("`", at + 1)
            end = len(text) if end < 0 else end
            return [self._substitution(text[at + 1 : end], text[at : end + 1])], end + 1
        if text.startswith("$((", at):
            end = _closing(text, at + 3, "(", ")")
            written = text[at : end + 2]
            number = self.arithmetic(text[at + 3 : end])
            return [
                Value(written, is_known=False) if number is None else Value(str(number))
            ], end + 2
        if text.startswith("$(", at):
            end = _closing(text, at + 2, "(", ")")
            return [self._substitution(text[at + 2 : end], text[at : end + 1])], end + 1
        if text.startswith("${", at):
            end = _closing(text, at + 2, "{", "}")
            return self._parameter(text[at + 2 : end], text[at : end + 1]), end + 1
        name = _NAME.match(text, at + 1)
        if name is None:
            return [Value("$")], at + 1
        return self._parameter(name[0], name[0] and f"${name[0]}"), name.end()

    def variable(self, name: str) -> Value | None:
        """Return the value of a variable or parameter, None if it is unset."""
        state = self.state
        if name.isdigit():
            if name == "0":
                return Value(state.script or "script")
            place = int(name) - 1 if len(name) < 5 else MOST_WORDS
            return state.arguments[place] if place < len(state.arguments) else None
        if name == "#":
            return Value(str(len(state.arguments)))
        if name in ("?", "!", "$", "-"):
            return Value(f"${name}", is_known=False)
        if name in state.arrays and name not in state.values:
            items = state.arrays[name]
            return Value(items[0].text, items[0].is_known) if items else None
        return state.values.get(name)

    def _parameter(self, content: str, written: str) -> list[Value]:
        """Return the values of ``${content}``."""
        match = _PARAMETER.fullmatch(content)
        if match is None or self.depth > MOST_NESTED:
            return [Value(written, is_known=False)]
        prefix, name, index, rest = match.groups()
        if name in ("@", "*") or index in ("@", "*"):
            return self._list(prefix, name, index, rest)
        if prefix == "#":
            value = self.variable(name)
            known = value is not None and value.is_known
            return [Value(str(len(value.text))) if value and known else Value(written, False)]
        value = self.variable(name)
        if prefix == "!" and value is not None and value.is_known:
            value = self.variable(value.text)
        if index and name not in self.state.arrays:
            value = self.variable(f"{name}[{self.joined(index).text}]")
        elif index:
            items, place = self.state.arrays[name], self.arithmetic(index)
            inside = place is not None and -len(items) <= place < len(items)
            value = (
                Value(items[place].text, items[place].is_known)
                if inside and place is not None
                else None
            )
        self.depth += 1
        try:
            found = self._modified(value, rest, written)
            if rest[:2] == ":=" or rest[:1] == "=":
                self.state.assign(name, found)
            return [found]
        finally:
            self.depth -= 1

    def _list(self, prefix: str, name: str, index: str | None, rest: str) -> list[Value]:
        if name in ("@", "*"):
            values = list(self.state.arguments)
        else:
            known = self.state.arrays.get(name)
            if known is None and name in self.state.values:
                known = [Word(*self.state.values[name][:1], 0, 0, self.state.values[name].is_known)]
            values = [
                Value(
                    word.text,
                    word.is_known,
                    place=(word.line and (word.start, word.end, word.line, word.file)) or None,
                )
                for word in known or []
            ]
        if prefix == "#":
            return [Value(str(len(values)))]
        del index
        return [self._modified(value, rest, value.text) for value in values] if rest else values

    def _modified(self, value: Value | None, rest: str, written: str) -> Value:
        """Return a value after ``:-default``, ``%pattern``, ``/from/to`` and the like."""
        colon, sign = rest[:1] == ":" and rest[1:2] in tuple("-=+?"), rest.lstrip(":")[:1]
        if rest and sign in tuple("-=+?") and (colon or rest[0] == sign):
            argument = rest[2 if colon else 1 :]
            is_set = value is not None and not value.is_unset and (bool(value.text) or not colon)
            if sign == "+":
                return self.joined(argument) if is_set else Value("")
            if is_set and value is not None:
                return value
            if sign == "?":
                return Value(written, is_known=False, is_unset=True)
            return self.joined(argument.strip("\n"))
        if value is None or value.is_unset:
            return Value(written, is_known=False, is_unset=True)
        if not rest or not value.is_known:
            return value
        part = _cut(value.text, rest, self)
        return Value(written, is_known=False) if part is None else Value(part)

    # --- arithmetic and commands

    def arithmetic(self, text: str) -> int | None:
        """Return the value of ``$((...))``; None if it is not known."""
        if len(text) > 500:
            return None

        def number(match: re.Match[str]) -> str:
            value = self.variable(match[1] or match[2])
            return value.text if value is not None and value.is_known else match[0]

        text = self.joined(text).text if "$(" in text else text
        for _ in range(3):
            text = _BARE.sub(number, text)
        if not _ARITHMETIC.fullmatch(text) or _GROUPING.search(text):
            return None
        text = re.sub(r"\b0+(?=\d)", "", text.replace("/", "//"))
        text = text.replace("&&", " and ").replace("||", " or ")
        text = re.sub(r"!(?!=)", " not ", text)
        try:
            value = expressions.evaluate(text, lambda _: None)
        except (expressions.Unknown, expressions.InvalidExpression):
            return None
        return int(value) if isinstance(value, int) else None

    def _substitution(self, command: str, written: str) -> Value:
        unknown = Value(written, is_known=False)
        if self.depth > MOST_NESTED or len(command) > 2_000:
            return unknown
        self.depth += 1
        try:
            output = self.output(Parser(command).parse(), "")
        finally:
            self.depth -= 1
        return unknown if output is None else Value(output.rstrip("\n")[:LARGEST_VALUE])

    def output(self, nodes: list[Node], given: str) -> str | None:
        """Return what commands print, if it is known; ``given`` is their input."""
        outputs: list[str] = []
        for node in nodes:
            output: str | None = None
            if self.depth > MOST_NESTED:
                return None
            if isinstance(node, Group) and node.is_pipe:
                output = given
                for part in node.body:
                    output = None if output is None else self.output([part], output)
            elif isinstance(node, Group):
                output = self.output(node.body, given)
            elif isinstance(node, Chain):
                output = self.output([part for _, part in node.parts], given)
            elif isinstance(node, Simple) and node.words:
                output = self._printed(node, given)
            if output is None:
                return None
            outputs.append(output)
        return "".join(outputs)

    def _printed(self, node: Simple, given: str) -> str | None:
        words = [value for word in node.words for value in self.fields(word.text)]
        if not words or not all(word.is_known for word in words):
            return None
        if node.heredoc is not None:
            body = node.heredoc.text
            given = self.joined(body).text if node.heredoc.is_string else self.heredoc(body)
        name, *arguments = (word.text for word in words)
        body = self.state.functions.get(name)
        if body is not None:
            inner = replace(self.state.copy(), arguments=[Value(each) for each in arguments])
            return Expansion(inner, self.read, self.depth + 1).output(body, given)
        printer = PRINTERS.get(PurePosixPath(name).name)
        return None if printer is None else printer(arguments, given, self)


def _closing(text: str, at: int, opening: str, closing: str) -> int:
    """Return where the bracket closes that is open at ``at``."""
    depth, quote = 1, ""
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and not (letter == "'" and closing == "}"):
            quote = letter
        elif letter == opening:
            depth += 1
        elif letter == closing:
            depth -= 1
            if not depth:
                return at
        at += 1
    return len(text)


def _cut(text: str, rest: str, expansion: Expansion) -> str | None:
    """Return a text without what a pattern matches, replaced, or in part; None if it is too long
    to compare each of its parts."""
    sign = rest[0]
    if sign in "#%":
        is_longest = rest[:2] == sign * 2
        pattern = _pattern(expansion.joined(rest[2 if is_longest else 1 :]).text)
        ascending = is_longest is (sign == "%")
        places = range(len(text) + 1) if ascending else range(len(text), -1, -1)
        if len(text) > LONGEST_CUT:
            return None
        if sign == "#":
            return text[next((n for n in places if pattern.fullmatch(text, 0, n)), 0) :]
        return text[: next((n for n in places if pattern.fullmatch(text, n)), len(text))]
    if sign == "/":
        every = rest[1:2] == "/"
        old, _, new = rest[2 if every else 1 :].partition("/")
        literal = expansion.joined(old).text
        if any(letter in literal for letter in "*?["):
            pattern = re.compile(translate(literal).removesuffix(r"\Z").removesuffix(r"\z"))
            return pattern.sub(lambda _: expansion.joined(new).text, text, count=0 if every else 1)
        return (
            text.replace(literal, expansion.joined(new).text, -1 if every else 1)
            if literal
            else text
        )
    if sign in ",^":
        return text.lower() if sign == "," else text.upper()
    if sign == ":":
        start, _, length = rest[1:].partition(":")
        begin = expansion.arithmetic(start) or 0
        count = expansion.arithmetic(length) if length else None
        return text[begin:][:count]
    return text


def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob))


def words_of(raw: Raw, expansion: Expansion, line: int, file: str) -> list[Word]:
    """Return the words that a word expands to."""
    words: list[Word] = []
    for value in expansion.fields(raw.text):
        start, end, at, inside = value.place or (raw.start, raw.end, line, file)
        words.append(Word(value.text, start, end, value.is_known, at, inside))
    return words
