"""Parse shell scripts into commands, conditions and loops, with the offset of each word.

The parser accepts what the shells of clusters accept, and skips what it does not know: a script
that cannot be parsed to its end still has the commands before that place.
"""

import re
from dataclasses import dataclass, field

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([\w.]+)\1")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]\s]*)\])?(\+?)=")
_FUNCTION = re.compile(r"(?:function\s+([\w.-]+)\s*(?:\(\s*\))?|([\w.-]+)\s*\(\s*\))\s*(?=[{(])")
_REDIRECTION = re.compile(r"(?:\d*|&)(?:>>|>\||>&|<&|>|<<<|<)")
_CLOSING = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;"))
_DECLARATIONS = frozenset(("export", "readonly", "local", "declare", "typeset"))
MOST_NESTED = 60
"""Levels of commands inside commands that are read."""


@dataclass(slots=True)
class Raw:
    """A word as written."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(slots=True)
class Assignment:
    """``NAME=value``, ``NAME[index]=value`` or, with ``items``, ``NAME=(words)``."""

    name: str
    value: Raw
    items: list[Raw] | None = None
    appends: bool = False
    index: str | None = None


@dataclass(slots=True)
class Heredoc:
    """A here-document, or a here-string; ``is_literal``: variables are not expanded."""

    text: str
    start: int
    is_literal: bool = False
    is_string: bool = False


@dataclass(slots=True)
class Simple:
    """A command with its words, and the assignments before it."""

    words: list[Raw] = field(default_factory=list[Raw])
    assignments: list[Assignment] = field(default_factory=list[Assignment])
    heredoc: Heredoc | None = None
    target: Raw | None = None
    """The file that its output is written to; ``appends``: at its end."""
    appends: bool = False
    source: Raw | None = None
    """The file that its input is read from."""


@dataclass(slots=True)
class Branches:
    """``if``: conditions with their commands; a condition of None is ``else``."""

    cases: "list[tuple[list[Node] | None, list[Node]]]"


@dataclass(slots=True)
class Case:
    """``case``: patterns with their commands."""

    subject: Raw
    cases: "list[tuple[list[Raw], list[Node]]]"


@dataclass(slots=True)
class Loop:
    """``for`` with a variable and its words; ``while`` and ``until`` with a condition."""

    body: "list[Node]"
    variable: str = ""
    items: list[Raw] = field(default_factory=list[Raw])
    condition: "list[Node]" = field(default_factory=list["Node"])
    until: bool = False


@dataclass(slots=True)
class Function:
    name: str
    body: "list[Node]"


@dataclass(slots=True)
class Chain:
    """Commands joined by ``&&`` and ``||``; each with the operator before it."""

    parts: "list[tuple[str, Node]]"


@dataclass(slots=True)
class Group:
    """``{ ... }``, ``( ... )``, or commands joined by ``|``."""

    body: "list[Node]"
    is_pipe: bool = False


@dataclass(slots=True)
class Test:
    """``[[ ... ]]`` or ``(( ... ))``, as written."""

    text: str
    start: int
    is_arithmetic: bool = False


Node = Simple | Branches | Case | Loop | Function | Chain | Group | Test


class Parser:
    """Parses one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.waiting: list[tuple[Simple, str, bool]] = []
        """Here-documents whose text begins on the next line: command, end, literal."""
        self.depth = 0

    def parse(self) -> list[Node]:
        """Return the commands of the whole text."""
        nodes: list[Node] = []
        while self.at < len(self.text):
            before = self.at
            nodes += self._list()
            if self.at < len(self.text):  # a closing word without its opening one
                self.at = max(self._end_of_word(self.at), before + 1)
        return nodes

    def _list(self) -> list[Node]:
        """Return commands up to a closing word, which is not consumed."""
        nodes: list[Node] = []
        self.depth += 1
        while self.depth <= MOST_NESTED:
            self._skip_separators()
            if self.at >= len(self.text) or self._word_here() in _CLOSING:
                break
            before = self.at
            nodes.append(self._chain())
            self.at = max(self.at, before + 1) if self.at == before else self.at
        self.depth -= 1
        return nodes

    def _chain(self) -> Node:
        parts = [("", self._pipe())]
        while True:
            self._blanks()
            sign = self.text[self.at : self.at + 2]
            if sign not in ("&&", "||"):
                break
            self.at += 2
            self._skip_separators(semicolons=False)
            parts.append((sign, self._pipe()))
        return parts[0][1] if len(parts) == 1 else Chain(parts)

    def _pipe(self) -> Node:
        parts = [self._command()]
        while True:
            self._blanks()
            if not self._starts("|") or self._starts("||"):
                break
            self.at += 2 if self._starts("|&") else 1
            self._skip_separators(semicolons=False)
            parts.append(self._command())
        return parts[0] if len(parts) == 1 else Group(parts, is_pipe=True)

    def _command(self) -> Node:
        self._blanks()
        word = self._word_here()
        if self._starts("(("):
            return self._test("((", "))")
        if self._starts("[["):
            return self._test("[[", "]]")
        if word in ("(", "{"):
            self.at += 1
            body = self._list()
            self._take(")" if word == "(" else "}")
            self._rest(Simple())
            return Group(body)
        if word == "!":
            return self._negated()
        if word == "if":
            return self._if()
        if word == "case":
            return self._case()
        if word in ("for", "select"):
            return self._for()
        if word in ("while", "until"):
            self.at += len(word)
            condition = self._list()
            return Loop(self._body(), condition=condition, until=word == "until")
        function = _FUNCTION.match(self.text, self.at)
        if function:
            self.at = function.end()
            body = self._command()
            return Function(function[1] or function[2], [body])
        return self._simple()

    def _negated(self) -> Node:
        """Return a command after ``!``; two of them cancel out."""
        signs = 0
        while self._word_here() == "!":
            signs, self.at = signs + 1, self.at + 1
            self._blanks()
        command = self._command()
        return Chain([("!", command)]) if signs % 2 else command

    def _test(self, opening: str, closing: str) -> Test:
        start = self.at + len(opening)
        end = self.text.find(closing, start)
        end = len(self.text) if end < 0 else end
        while self.text.startswith(")", end + 2) and self.text.count("(", start, end) > (
            self.text.count(")", start, end)
        ):
            end += 1  # ((a / (b * c)))
        self.at = end + len(closing)
        return Test(self.text[start:end], start, is_arithmetic=opening == "((")

    def _if(self) -> Branches:
        cases: list[tuple[list[Node] | None, list[Node]]] = []
        while self._word_here() in ("if", "elif"):
            self._word()
            condition = self._list()
            self._take("then")
            cases.append((condition, self._list()))
        if self._take("else"):
            cases.append((None, self._list()))
        self._take("fi")
        return Branches(cases)

    def _case(self) -> Case:
        self._word()
        self._blanks()
        subject = self._word()
        self._skip_separators()
        self._take("in")
        cases: list[tuple[list[Raw], list[Node]]] = []
        while True:
            self._skip_separators()
            if self.at >= len(self.text) or self._word_here() == "esac":
                break
            if self._starts("("):
                self.at += 1
            patterns: list[Raw] = []
            while self.at < len(self.text) and not self._starts(")"):
                self._blanks()
                before = self.at
                patterns.append(self._word())
                self._blanks()
                if self._starts("|"):
                    self.at += 1
                elif self.at == before or not self._starts(")"):
                    break
            self.at += 1
            cases.append((patterns, self._list()))
            self._take(";;")
        self._take("esac")
        return Case(subject, cases)

    def _for(self) -> Loop:
        self._word()
        self._blanks()
        if self._starts("(("):
            self._test("((", "))")
            return Loop(self._body())
        variable = self._word().text
        self._skip_separators()
        items: list[Raw] = []
        if self._take("in"):
            self._blanks()
            while self.at < len(self.text) and self.text[self.at] not in "\n;":
                before = self.at
                items.append(self._word())
                self._blanks()
                if self.at == before:
                    self.at += 1
        return Loop(self._body(), variable, items)

    def _body(self) -> list[Node]:
        self._skip_separators()
        self._take("do")
        body = self._list()
        self._take("done")
        self._rest(Simple())
        return body

    def _simple(self) -> Simple:
        command = Simple()
        self._rest(command, assigns=True)
        return command

    def _rest(self, command: Simple, *, assigns: bool = False) -> None:
        """Read words, assignments and redirections up to the end of a command."""
        text = self.text
        while True:
            self._blanks()
            if self.at >= len(text) or (text[self.at] in "\n;|&)" and not self._starts("&>")):
                return
            heredoc = _HEREDOC.match(text, self.at)
            redirection = None if heredoc else _REDIRECTION.match(text, self.at)
            if heredoc and not self._starts("<<<"):
                self.at = heredoc.end()
                self.waiting.append((command, heredoc[2], bool(heredoc[1])))
            elif redirection:
                self._redirect(command, redirection)
            elif assigns and (assigned := _ASSIGNMENT.match(text, self.at)):
                command.assignments.append(self._assignment(assigned))
            else:
                before = self.at
                word = self._word()
                if self.at == before:
                    self.at += 1
                    continue
                command.words.append(word)
                # export NAME=value assigns too.
                assigns = word.text in _DECLARATIONS if len(command.words) == 1 else assigns
                assigns = assigns and command.words[0].text in _DECLARATIONS

    def _redirect(self, command: Simple, sign: re.Match[str]) -> None:
        self.at = sign.end()
        self._blanks()
        if self._starts("("):  # <(process)
            self.at += 1
            self._list()
            self._take(")")
            return
        word = self._word()
        if sign[0].endswith("<<<"):
            command.heredoc = Heredoc(word.text, word.start, is_string=True)
        elif sign[0].endswith("<"):
            command.source = word
        elif ">" in sign[0] and "&" not in sign[0][-1:]:
            command.target, command.appends = word, ">>" in sign[0]

    def _assignment(self, match: re.Match[str]) -> Assignment:
        name, index, plus = match.groups()
        self.at = match.end()
        if not self._starts("("):
            return Assignment(name, self._word(), appends=bool(plus), index=index)
        start = self.at
        self.at += 1
        items: list[Raw] = []
        while True:
            self._skip_separators()
            if self.at >= len(self.text) or self._starts(")"):
                break
            before = self.at
            items.append(self._word())
            self.at = max(self.at, before + 1)
        self.at += 1
        return Assignment(name, Raw("", start), items, bool(plus))

    # --- letters

    def _starts(self, prefix: str) -> bool:
        return self.text.startswith(prefix, self.at)

    def _take(self, word: str) -> bool:
        """Consume a reserved word, if it is next."""
        self._skip_separators(semicolons=word != ";;")
        if self._word_here() != word:
            return False
        self.at += len(word)
        return True

    def _word_here(self) -> str:
        for sign in (";;", "(", ")"):
            if self._starts(sign):
                return sign
        end = self.at
        while end < len(self.text) and self.text[end] not in " \t\r\n;|&()<>" and end - self.at < 9:
            end += 1
        return self.text[self.at : end]

    def _word(self) -> Raw:
        start = self.at
        self.at = self._end_of_word(start)
        return Raw(self.text[start : self.at], start)

    def _end_of_word(self, at: int) -> int:
        return end_of_word(self.text, at)

    def _blanks(self) -> None:
        text = self.text
        while self.at < len(text):
            if text[self.at] in " \t\r":
                self.at += 1
            elif text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at = text.index("\n", self.at) + 1
            elif text[self.at] == "#" and (self.at == 0 or text[self.at - 1] in " \t\n;\r("):
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            else:
                return

    def _skip_separators(self, *, semicolons: bool = True) -> None:
        text = self.text
        while True:
            self._blanks()
            if self.at >= len(text):
                return
            if text[self.at] == "\n":
                self.at += 1
                self._read_heredocs()
            elif (
                semicolons and text[self.at] in ";&" and not text.startswith((";;", "&&"), self.at)
            ):
                self.at += 1
            else:
                return

    def _read_heredocs(self) -> None:
        for command, end, literal in self.waiting:
            # Also indented where the sign has no dash: shells differ, and scripts do it.
            closing = re.compile(rf"^[ \t]*{re.escape(end)}[ \t\r]*$", re.MULTILINE)
            found = closing.search(self.text, self.at)
            stop = found.start() if found else len(self.text)
            body = self.text[self.at : stop]
            command.heredoc = Heredoc(body, self.at, is_literal=literal)
            self.at = found.end() if found else len(self.text)
        self.waiting.clear()


def end_of_word(text: str, at: int) -> int:
    """Return where a word ends: quotes, ``${...}`` and ``$(...)`` may contain separators."""
    closing: list[str] = []
    while at < len(text):
        letter, inner = text[at], closing[-1] if closing else ""
        if inner == "'":
            if letter == "'":
                closing.pop()
        elif letter == "\\":
            if not closing and text.startswith(("\\\n", "\\\r\n"), at):
                break
            at += 1
        elif closing and letter == inner:
            closing.pop()
        elif letter in "'\"" and not (letter == "'" and inner == '"'):
            closing.append(letter)
        elif text.startswith("$((", at):
            closing += ")", ")"
            at += 2
        elif text.startswith(("$(", "${"), at):
            closing.append(")" if text[at + 1] == "(" else "}")
            at += 1
        elif letter == "(" and inner == ")":
            closing.append(")")
        elif letter == "`":
            closing.append("`")
        elif not closing and letter in " \t\r\n;|&<>()":
            break
        at += 1
    return min(at, len(text))
