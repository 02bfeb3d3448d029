"""Follow a shell script to the commands that it would run, without running any.

Conditions decide where their values are known; where they are not, all branches are followed and a
variable on which they differ is unknown. A variable that the script does not set is unset in tests
and defaults (``[ -z "$GPUS" ]``, ``${GPUS:-8}``), and unknown as a value.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import NamedTuple

from dsconfig.source.shell.conditions import Condition, negated
from dsconfig.source.shell.expansion import (
    LARGEST_VALUE,
    MOST_WORDS,
    Expansion,
    State,
    Value,
    Word,
    words_of,
)
from dsconfig.source.shell.syntax import (
    Assignment,
    Branches,
    Case,
    Chain,
    Function,
    Group,
    Loop,
    Node,
    Parser,
    Raw,
    Simple,
    Test,
    end_of_word,
)

MOST_COMMANDS, MOST_ROUNDS, MOST_INCLUDED, MOST_STEPS = 20_000, 32, 8, 100_000
"""Limits on commands followed, rounds of a loop, scripts inside scripts, and steps in all."""
COPIED = 64
"""Variables and items that are copied in the time of one step."""
MOST_ARGUMENTS = 10
MOST_FILES = 64
"""Limit on inclusions in all, also of one script."""
_UNQUOTED = re.compile(r"([:,\[]\s*)\$\{?([A-Za-z_]\w*)\}?(?=\s*[,}\]\n])")
"""A variable that is a value of its own in JSON."""
_ANY = re.compile(r"\$([A-Za-z_]\w*)")
_ENTRY = re.compile(r"\[[^\]]+\]=")
"""An entry of an associative array: ``[key]=value``."""
_CALCULATED = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:([-+*/%]?=)(?!=)(.*)|([-+])\4)\s*", re.DOTALL)
_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))
_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")


class WrittenFile(NamedTuple):
    """Content of a file that a script writes (``cat > F <<EOF``), variables expanded, and where it
    begins; ``is_verbatim``: the script has the same text there."""

    text: str
    start: int
    is_verbatim: bool


class Command(NamedTuple):
    """A command: its words, the environment that the script sets for it, and its folder."""

    words: tuple[Word, ...]
    environment: Mapping[str, Value]
    folder: str
    is_certain: bool


@dataclass(slots=True)
class Followed:
    """The commands of a script in order, the files it writes, and the scripts it includes."""

    commands: list[Command] = field(default_factory=list[Command])
    files: dict[str, WrittenFile] = field(default_factory=dict[str, WrittenFile])
    included: list[str] = field(default_factory=list[str])
    steps: int = 0
    """Commands, conditions and loops that were evaluated."""


def commands_of(
    text: str,
    name: str,
    read: Callable[[str], str | None],
    environment: Mapping[str, str] | None = None,
    *,
    is_called: bool = False,
) -> Followed:
    """Return what a script runs; ``read`` returns the text of a file it names, or None.

    ``environment``: variables that its launcher sets, such as those of Slurm. ``is_called``: with
    arguments that are not known, else without any.
    """
    values = {key: Value(value) for key, value in (environment or {}).items()}
    state = State(values=values, exported=dict(values), script=name)
    state.arrays["BASH_SOURCE"] = [Word(name or "script", 0, 0)]
    if is_called:
        state.arguments = [Value(f"${n}", is_known=False) for n in range(1, MOST_ARGUMENTS)]
    followed = Followed()
    _Script(text, "", state, read, followed).follow()
    return followed


class _Script:
    """Follows one text in a state."""

    def __init__(
        self,
        text: str,
        file: str,
        state: State,
        read: Callable[[str], str | None],
        followed: Followed,
        place: Word | None = None,
        depth: int = 0,
    ) -> None:
        self.text, self.file, self.read, self.followed = text, file, read, followed
        self.state = state
        self.place = place
        """The word that is this script (``bash -c``): it is where all of its words are written."""
        self.depth = depth
        self.is_certain = True
        self.calls = 0
        self.lines: list[int] | None = None

    def follow(self) -> None:
        self._nodes(Parser(self.text).parse())

    @property
    def expansion(self) -> Expansion:
        return Expansion(self.state, self.read)

    # --- structure

    def _nodes(self, nodes: list[Node]) -> bool | None:
        """Follow commands in order; return the status of the last one."""
        status: bool | None = True
        for node in nodes:
            commands, steps = len(self.followed.commands), self.followed.steps
            if self.state.has_ended or commands >= MOST_COMMANDS or steps >= MOST_STEPS:
                break
            self.followed.steps += 1
            status = self._node(node)
        return status

    def _node(self, node: Node) -> bool | None:
        match node:
            case Simple():
                return self._simple(node)
            case Chain():
                return self._chain(node)
            case Group():
                if node.is_pipe:
                    _pass_heredoc_on(node.body)
                    for part in node.body:
                        self._node(part)
                    return None
                return self._nodes(node.body)
            case Branches():
                return self._branches(node.cases)
            case Case():
                return self._case(node)
            case Loop():
                self._loop(node)
            case Function():
                self.state.functions[node.name] = node.body
            case Test():
                return self._test(node)
        return True

    def _chain(self, chain: Chain) -> bool | None:
        status: bool | None = True
        for sign, node in chain.parts:
            if sign == "!":
                status = negated(self._node(node))
            elif (
                sign == ""
                or (sign == "&&" and status is True)
                or (sign == "||" and status is False)
            ):
                status = self._node(node)
            elif status is None:
                # `mkdir x && train` runs; `cd x || exit` rarely does.
                status = self._node(node) if sign == "&&" else None
        return status

    def _branches(self, cases: list[tuple[list[Node] | None, list[Node]]]) -> bool | None:
        """Follow the branch whose condition holds; all that may, if that is unknown."""
        possible: list[State] = []
        for condition, body in cases:
            status = True if condition is None else self._nodes(condition)
            if status is False:
                continue
            if status and not possible:
                return self._nodes(body)
            possible.append(self._apart(body))
            if status:
                break
        else:
            possible.append(self.state)
        self._join(possible)
        return None if len(possible) > 1 else True

    def _case(self, case: Case) -> bool | None:
        subject = self.expansion.joined(case.subject.text, empty_if_unset=True)
        if subject.is_known:
            for patterns, body in case.cases:
                texts = [self.expansion.joined(each.text) for each in patterns]
                if any(fnmatchcase(subject.text, each.text) for each in texts):
                    return self._nodes(body)
            return True
        self._join([self.state, *(self._apart(body) for _, body in case.cases)])
        return None

    def _apart(self, body: list[Node]) -> State:
        """Follow commands that may not run, in a copy of the state; return it."""
        before, certain = self.state, self.is_certain
        self.followed.steps += before.size // COPIED
        self.state, self.is_certain = before.copy(), False
        self._nodes(body)
        after, self.state, self.is_certain = self.state, before, certain
        return after

    def _join(self, states: list[State]) -> None:
        going_on = [state for state in states if not state.has_ended]
        if len(going_on) == 1:
            self.state = going_on[0]
        elif going_on:
            self.state.merge(going_on)

    def _loop(self, loop: Loop) -> None:
        if loop.variable:
            items = [word for raw in loop.items for word in self._words(raw)]
            for word in items[:MOST_ROUNDS]:
                self.state.assign(loop.variable, Value(word.text, word.is_known))
                self._nodes(loop.body)
            return
        if loop.condition and self._nodes(loop.condition) is loop.until:
            return
        self._join([self.state, self._apart(loop.body)])

    # --- commands

    def _words(self, raw: Raw) -> list[Word]:
        if self.place is not None:
            words = words_of(raw, self.expansion, self.place.line, self.place.file)
            return [word._replace(start=self.place.start, end=self.place.end) for word in words]
        return words_of(raw, self.expansion, self._line(raw.start), self.file)

    def _line(self, offset: int) -> int:
        if self.lines is None:
            self.lines = [at for at, letter in enumerate(self.text) if letter == "\n"]
        return bisect_right(self.lines, offset - 1) + 1

    def _simple(self, node: Simple) -> bool | None:
        words = [word for raw in node.words for word in self._words(raw)]
        prefix = {} if not words else {a.name: self._value(a) for a in node.assignments}
        declared = bool(words) and words[0].text in _DECLARED
        if not words or declared:
            for assignment in node.assignments:
                self._assign(assignment)
                if declared and words[0].text == "export" and assignment.name in self.state.values:
                    self.state.exported[assignment.name] = self.state.values[assignment.name]
            for word in words[1:]:
                if words[0].text == "export" and word.text in self.state.values:
                    self.state.exported[word.text] = self.state.values[word.text]
            return True
        if node.heredoc is not None or node.target is not None:
            self._write(node, words)
        return self._run(node, words, prefix)

    def _value(self, assignment: Assignment) -> Value:
        return self.expansion.joined(assignment.value.text)

    def _assign(self, assignment: Assignment) -> None:
        state, name = self.state, assignment.name
        if assignment.items is not None and any(
            map(_ENTRY.match, (i.text for i in assignment.items))
        ):
            for raw in assignment.items:
                key, _, value = raw.text.partition("]=")
                place = f"{name}[{self.expansion.joined(key[1:]).text}]"
                state.values[place] = self.expansion.joined(value)
            return
        if assignment.items is not None:
            items = [word for raw in assignment.items for word in self._words(raw)]
            first = self.expansion.variable(name)
            scalar = [] if first is None else [Word(first.text, 0, 0, first.is_known)]
            before = state.arrays.get(name, scalar) if assignment.appends else []
            state.arrays[name] = [*before, *items][:MOST_WORDS]
            state.values.pop(name, None)
            return
        value = self._value(assignment)
        if assignment.index is not None and self.expansion.arithmetic(assignment.index) is None:
            state.values[f"{name}[{self.expansion.joined(assignment.index).text}]"] = value
            return
        if assignment.index is not None:
            state.arrays.setdefault(name, []).append(Word(*value[:1], 0, 0, value.is_known))
            return
        if assignment.appends:
            before = self.expansion.variable(name) or Value("")
            value = Value(
                (before.text + value.text)[:LARGEST_VALUE], before.is_known and value.is_known
            )
        state.assign(name, value)
        if name in state.exported:
            state.exported[name] = value

    def _run(self, node: Simple, words: list[Word], prefix: dict[str, Value]) -> bool | None:
        """Follow a command that has words; return its status if it is known."""
        name, state = words[0].text, self.state
        arguments = words[1:]
        match PurePosixPath(name).name or name:
            case "[" | "test":
                return Condition(self._tested(node), self.state.values).status()
            case "let":
                for word in arguments:
                    self._calculate(word.text)
                return None
            case "true" | ":":
                return True
            case "false":
                return False
            case "read":
                self._read_variable(node, arguments, prefix)
                return True
            case "shift":
                count = int(arguments[0].text) if arguments and arguments[0].text.isdigit() else 1
                del state.arguments[:count]
                return True
            case "set":
                texts = [word.text for word in arguments]
                if "--" in texts:
                    given = arguments[texts.index("--") + 1 :]
                    state.arguments = [Value(word.text, word.is_known) for word in given]
                return True
            case "exit" | "return":
                # A script that asks for arguments ends here; with them it goes on.
                state.has_ended = not self.is_certain
                return None
            case "cd" | "pushd":
                if arguments and arguments[0].is_known:
                    state.folder = str(PurePosixPath(state.folder) / arguments[0].text)
                return True
            case "unset":
                for word in arguments:
                    state.values.pop(word.text, None)
                    state.arrays.pop(word.text, None)
                return True
            case "source" | ".":
                return self._include(arguments, state)
            case "eval":
                text = " ".join(word.text for word in arguments)
                self._nested(text, words[0])
                return None
            case _:
                pass
        if name in state.functions and self.calls < MOST_INCLUDED:
            self.calls += 1
            outer, state.arguments = state.arguments, [Value(w.text, w.is_known) for w in arguments]
            status = self._nodes(state.functions[name])
            self.state.arguments = outer
            self.calls -= 1
            return status
        if self._follow_shell(words) or self._follow_input(node, words):
            return None
        environment = {**state.exported, **prefix}
        command = Command(tuple(words), environment, state.folder, self.is_certain)
        self.followed.commands.append(command)
        return None

    def _follow_shell(self, words: list[Word]) -> bool:
        """Follow ``bash -c 'commands'`` and ``bash FILE``, also after other programs."""
        for at, word in enumerate(words):
            if PurePosixPath(word.text).name not in (*_SHELLS, "sbatch"):
                continue
            rest = words[at + 1 :]
            while rest and rest[0].text.startswith("-"):
                flag = rest[0].text
                if "c" in flag.lstrip("-") and not flag.startswith("--") and rest[1:]:
                    self._nested(rest[1].text, rest[1])
                    return True
                rest = rest[1:]
            if rest and rest[0].is_known and rest[0].text.endswith(_SUFFIXES):
                return self._include(rest, self.state.copy()) is not None
        return False

    def _follow_input(self, node: Simple, words: list[Word]) -> bool:
        """Follow a here-document that a shell or ``sbatch`` reads, and ``sbatch --wrap``."""
        name = PurePosixPath(words[-1].text if words[0].text == "ssh" else words[0].text).name
        if name != "sbatch" and name not in _SHELLS:
            return False
        wrapped = next((word for word in words if word.text.startswith("--wrap=")), None)
        if wrapped is not None:
            self._nested(wrapped.text.removeprefix("--wrap="), wrapped)
        elif node.heredoc is not None and not node.heredoc.is_string:
            body = node.heredoc.text
            text = body if node.heredoc.is_literal else self.expansion.heredoc(body)
            self._nested(text, words[0])
        return wrapped is not None or node.heredoc is not None

    def _nested(self, text: str, place: Word) -> None:
        """Follow commands that a word contains."""
        if self.depth >= MOST_INCLUDED:
            return
        place = self.place or place
        inner = _Script(
            text, self.file, self.state, self.read, self.followed, place, self.depth + 1
        )
        inner.is_certain = self.is_certain
        inner.follow()

    def _include(self, words: list[Word], state: State) -> bool | None:
        """Follow another script; None if it cannot be read."""
        if not words or not words[0].is_known or self.depth >= MOST_INCLUDED:
            return None
        text = self.read(words[0].text) if len(self.followed.included) < MOST_FILES else None
        if text is None:
            return None
        self.followed.included.append(words[0].text)
        outer = state.arguments
        if words[1:]:
            state.arguments = [Value(word.text, word.is_known) for word in words[1:]]
        inner = _Script(text, words[0].text, state, self.read, self.followed, None, self.depth + 1)
        inner.is_certain = self.is_certain
        inner.follow()
        state.arguments = outer
        return True

    def _read_variable(self, node: Simple, words: list[Word], prefix: dict[str, Value]) -> None:
        """Follow ``read``: of a here-document, of a here-string, or of input that is not known."""
        flags = [word.text for word in words if word.text.startswith("-")]
        names = [word.text for word in words if re.fullmatch(r"[A-Za-z_]\w*", word.text)]
        if not names:
            return
        text = Value(f"${names[-1]}", is_known=False)
        if node.heredoc is not None and node.heredoc.is_string:
            text = self.expansion.joined(node.heredoc.text)
        elif node.heredoc is not None:
            body = node.heredoc.text
            text = Value(body if node.heredoc.is_literal else self.expansion.heredoc(body))
            text = text._replace(text=text.text.strip("\n"))
        if any("a" in flag for flag in flags) and text.is_known:
            separators = prefix["IFS"].text if "IFS" in prefix else None
            parts = text.text.split(separators or None) if text.text else []
            self.state.arrays[names[-1]] = [Word(part, 0, 0) for part in parts]
            self.state.values.pop(names[-1], None)
        else:
            self.state.assign(names[-1], text)

    def _write(self, node: Simple, words: list[Word]) -> None:
        """Record the file that a command writes from a here-document, or prints to."""
        target = node.target
        if words[0].text == "tee" and len(words) > 1:
            named = words[-1]
        elif target is not None:
            named = next(iter(self._words(target)), None)
        else:
            return
        heredoc = node.heredoc
        if named is None:
            return
        if words[0].text in ("echo", "printf") and heredoc is None:
            output = self.expansion.output([node], "")
            before = self.followed.files.get(named.text) if node.appends else None
            text = (before.text if before else "") + (output or "")
            if output is not None and len(text) < LARGEST_VALUE:
                self.followed.files[named.text] = WrittenFile(text, node.words[0].start, False)
            return
        if words[0].text not in ("cat", "tee") or heredoc is None or heredoc.is_string:
            return
        content = heredoc.text
        if not heredoc.is_literal:
            # Unknown variables become placeholders.
            content = _UNQUOTED.sub(r'\1"${\2}"', self.expansion.heredoc(content))
            content = _ANY.sub(r"${\1}", content)
        is_verbatim = content == heredoc.text and not self.file and self.place is None
        self.followed.files[named.text] = WrittenFile(content, heredoc.start, is_verbatim)

    def _calculate(self, text: str) -> int | None:
        """Follow ``NAME = expression`` and ``NAME++``; return the value of an expression."""
        assigned = _CALCULATED.fullmatch(text)
        if assigned is None:
            return self.expansion.arithmetic(text)
        name, sign, operand, step = assigned.groups()
        sign, operand = (step, "1") if step else (sign, operand)
        written = operand if sign == "=" else f"{name} {sign[0]} ({operand})"
        value = self.expansion.arithmetic(written)
        known = Value(f"${name}", is_known=False) if value is None else Value(str(value))
        self.state.assign(name, known)
        return value

    # --- conditions

    def _tested(self, node: Simple) -> list[Value]:
        """Return the words of a test, where an unset variable is empty."""
        raws = [raw for raw in node.words[1:] if raw.text != "]"]
        return [self.expansion.joined(raw.text, empty_if_unset=True) for raw in raws]

    def _test(self, test: Test) -> bool | None:
        if test.is_arithmetic:
            value = self._calculate(test.text)
            return None if value is None else bool(value)
        words: list[Value] = []
        at = 0
        while at < len(test.text):
            if test.text[at].isspace():
                at += 1
                continue
            sign = next(
                (s for s in ("&&", "||", "(", ")", "<", ">") if test.text.startswith(s, at)), ""
            )
            end = at + len(sign) if sign else max(end_of_word(test.text, at), at + 1)
            written = test.text[at:end]
            words.append(
                Value(written) if sign else self.expansion.joined(written, empty_if_unset=True)
            )
            at = end
        return Condition(words, self.state.values).status()


def _pass_heredoc_on(pipe: list[Node]) -> None:
    """Give the commands after ``cat <<END |`` its here-document."""
    first = pipe[0]
    if isinstance(first, Simple) and first.heredoc and first.words and first.words[0].text == "cat":
        for part in pipe[1:]:
            if isinstance(part, Simple) and part.heredoc is None:
                part.heredoc = first.heredoc


_DECLARED = frozenset(("export", "readonly", "local", "declare", "typeset"))
