"""The training command of a shell script or Slurm job: its options and its number of ranks.

Nothing is executed. Variables, arrays and defaults (``${GPUS:-8}``) assigned in the script are
expanded, also those that Slurm sets from ``#SBATCH`` lines; an option whose value is only known at
run time (``$1``, ``$(...)``) is left out.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from dsconfig.report import Range
from dsconfig.source import plugin_settings
from dsconfig.source.pointer import MAX_DEPTH, is_block
from dsconfig.source.positions import LineIndex, Offsets

SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
LAUNCH = "$launch"
"""Key of a script's content for its number of ranks (``gpus``) and nodes."""
CONFIG_OPTIONS = ("deepspeed", "deepspeed_config", "ds_config", "deepspeed_config_file")
_LAUNCHERS = {"deepspeed": "deepspeed", "torchrun": "torchrun", "accelerate": "accelerate"}
_TRAINERS: Mapping[str, tuple[str, ...]] = {
    "llamafactory-cli": ("train",),
    "lmf": ("train",),
    "axolotl": ("train",),
    "swift": ("sft", "pt", "rlhf"),
    "trl": ("sft", "dpo", "kto", "grpo", "rloo", "reward"),
}
"""Programs that start their own ranks, and their subcommands that train."""
_ALL_DEVICES = frozenset(("llamafactory-cli", "lmf", "axolotl"))
"""Those that use every visible GPU if no count is given; the others then use one process."""
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Launchers started with ``python -m``."""
_SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
}
_SBATCH = re.compile(r"^#SBATCH\s+--?([\w-]+)(?:[= ]\s*(\S+))?", re.MULTILINE)
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_WRITTEN = re.compile(r"(?:[^<>&\d]>|\btee\s)\s*([^\s<>|;&]+)")
"""The file that a command with a here-document writes."""
_ASSIGNMENT = re.compile(r"(?:export\s+|readonly\s+|local\s+)?([A-Za-z_]\w*)\+?=")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\}|([A-Za-z_]\w*))")
_ANY = re.compile(r"\$([A-Za-z_]\w*)")
_UNQUOTED = re.compile(r"([:,\[]\s*)\$\{?([A-Za-z_]\w*)\}?(?=\s*[,}\]\n])")
"""A variable that is a value of its own in JSON."""
_PRODUCT = re.compile(r"\$\(\(([\w\s*$]+)\)\)")
_SEPARATORS = "\n;|&"
_LARGEST_VALUE, _MOST_WORDS = 2**16, 2**12
"""Limits on a variable and an array, which may contain themselves."""


class Word(NamedTuple):
    """A word of a command; ``is_known``: its value does not depend on the run."""

    text: str
    start: int
    end: int
    is_known: bool = True


class WrittenFile(NamedTuple):
    """Content of a file that a script writes (``cat > F <<EOF``), variables expanded, and where it
    begins; ``is_verbatim``: the script has the same text there."""

    text: str
    start: int
    is_verbatim: bool


@dataclass(frozen=True, slots=True)
class Script:
    """The training command of a script.

    ``content``: its options by name, nested where the name of ``a.b=value`` has dots, and
    ``LAUNCH``. ``places``: offsets of each option and its value, by pointer of ``content``.
    """

    content: Mapping[str, Any]
    places: Mapping[str, Offsets]
    config: str | None = None
    """Path of the ds_config."""
    launch_config: str | None = None
    """Path of accelerate's YAML."""
    arguments_file: str | None = None
    """Path of the YAML or JSON with the other arguments."""
    launch_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of ``accelerate launch``; ``launch_places``: where they are."""
    launch_places: Mapping[str, Offsets] = field(default_factory=dict[str, Offsets])
    files: Mapping[str, WrittenFile] = field(default_factory=dict[str, WrittenFile])
    has_launcher: bool = True

    @property
    def rank(self) -> int:
        """Order of preference among the commands of a script."""
        named = self.config or self.launch_config or (self.has_launcher and self.arguments_file)
        named = named or plugin_settings.launch_of_options(self.launch_options)
        return 0 if named else 1 if self.has_launcher else 2


@dataclass(slots=True)
class _Shell:
    """Variables assigned and files written so far."""

    values: dict[str, str] = field(default_factory=dict[str, str])
    arrays: dict[str, list[Word]] = field(default_factory=dict[str, list[Word]])
    files: dict[str, WrittenFile] = field(default_factory=dict[str, WrittenFile])


def training_command(text: str) -> Script | None:
    """Return the first command that passes a ds_config to a program, else the first one that a
    launcher starts; None without either."""
    batch = _batch_options(text)
    shell = _Shell(
        {name: batch[option] for option in _SLURM if option in batch for name in _SLURM[option]}
    )
    scripts = (_script(words, batch, shell) for words in _commands(text, shell))
    found = [script for script in scripts if script is not None]
    return min(found, key=lambda script: script.rank, default=None)


def option_range(text: str, option: str) -> Range | None:
    """Return the position of an option of the training command, or None without it."""
    script = training_command(text)
    place = None if script is None else script.places.get("/" + option.replace(".", "/"))
    return None if place is None else LineIndex(text).range(place[0], place[1])


def _batch_options(text: str) -> dict[str, str]:
    """Return the options of ``#SBATCH`` lines that count nodes, GPUs and tasks."""
    short = {"N": "nodes", "gres": "gpus-per-node"}
    found: dict[str, str] = {}
    for name, value in _SBATCH.findall(text):
        number = value.rpartition(":")[2]
        if number.isdigit():
            found[str(short.get(name, name))] = number
    return found


# --- words


def _commands(text: str, shell: _Shell) -> Iterator[list[Word]]:
    """Yield the words of each command, expanded; assignments are recorded."""
    command: list[Word] = []
    at, skip_to = 0, ""
    while at < len(text):
        letter = text[at]
        if letter in _SEPARATORS:
            if command:
                yield command
            command = []
            at += 1
            if letter == "\n" and skip_to:
                end = re.compile(rf"^\s*{skip_to}\s*$", re.MULTILINE).search(text, at)
                _write(text, at, end.start() if end else len(text), shell)
                at, skip_to = (end.end() if end else len(text)), ""
        elif letter == "#":
            at = _end_of_line(text, at)
        elif letter in " \t\r":
            at += 1
        elif text.startswith("\\\n", at):
            at += 2
        elif heredoc := _HEREDOC.match(text, at):
            at, skip_to = heredoc.end(), heredoc[1]
        elif not command and (assigned := _ASSIGNMENT.match(text, at)):
            at = _assign(text, assigned, shell)
        else:
            end = _end_of_word(text, at)
            command += _expanded(Word(text[at:end], at, end), shell)
            at = max(end, at + 1)
    if command:
        yield command


def _write(text: str, start: int, end: int, shell: _Shell) -> None:
    """Record the file that the command before a here-document writes, if any."""
    line = text.rfind("\n", 0, start - 1) + 1
    target = _WRITTEN.search(text, line, start)
    if target is None:
        return
    written = text[start:end]
    heredoc = _HEREDOC.search(text, line, start)
    is_quoted = heredoc is not None and heredoc[0][-1] in "'\""
    # Unknown variables become placeholders.
    content = written
    if not is_quoted:
        content = _UNQUOTED.sub(r'\1"${\2}"', _filled(written, shell))
        content = _ANY.sub(r"${\1}", content)
    (name, *_) = _expanded(Word(target[1], *target.span(1)), shell) or [None]
    if name is not None:
        shell.files[name.text] = WrittenFile(content, start, content == written)


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _end_of_word(text: str, at: int) -> int:
    """Return where a word ends: quotes, ``${...}`` and ``$(...)`` may contain separators."""
    closing: list[str] = []
    while at < len(text):
        letter = text[at]
        if letter == "\\" and closing[-1:] != ["'"]:
            at += 2
            continue
        if closing and letter == closing[-1]:
            closing.pop()
        elif closing[-1:] == ["'"]:
            pass
        elif letter in "'\"" and not (letter == "'" and closing[-1:] == ['"']):
            closing.append(letter)
        elif text.startswith("$((", at):
            closing += ")", ")"
            at += 2
        elif text.startswith(("$(", "${"), at):
            closing.append(")" if text[at + 1] == "(" else "}")
            at += 1
        elif letter == "`":
            closing.append("`")
        elif not closing and letter in " \t\r\n;|&<>()":
            break
        at += 1
    return min(at, len(text))


def _assign(text: str, match: re.Match[str], shell: _Shell) -> int:
    """Record ``NAME=value`` or ``NAME=(words)``; return where it ends."""
    name, at = match[1], match.end()
    if text.startswith("(", at):
        words: list[Word] = []
        at += 1
        while at < len(text) and text[at] != ")":
            if text[at] == "#":
                at = _end_of_line(text, at)
            elif text[at].isspace() or text.startswith("\\\n", at):
                at += 1
            else:
                end = max(_end_of_word(text, at), at + 1)
                words += _expanded(Word(text[at:end], at, end), shell)
                at = end
        before = shell.arrays.get(name, []) if "+=" in match[0] else []
        shell.arrays[name] = (before + words)[:_MOST_WORDS]
        return at + 1
    end = _end_of_word(text, at)
    value = "".join(word.text for word in _expanded(Word(f'"{text[at:end]}"', at, end), shell))
    before = shell.values.get(name, "") if "+=" in match[0] else ""
    value = before + value.replace('"', "").replace("'", "")
    shell.values[name] = value[:_LARGEST_VALUE]
    return end


def _expanded(word: Word, shell: _Shell) -> list[Word]:
    """Return the words that a word expands to: several for an array or an unquoted variable."""
    array = re.fullmatch(r"\"?\$\{(\w+)\[[@*]\]\}\"?", word.text)
    if array is not None:
        return shell.arrays.get(array[1], [])
    if word.text.startswith("'"):
        return [word._replace(text=word.text.strip("'"))]

    text = _filled(word.text, shell)
    is_known = "$" not in text and "`" not in text
    if word.text.startswith("$") and is_known and " " in text.strip():
        return [word._replace(text=part) for part in text.split()]
    text = text.replace("\\\n", "").replace('"', "").replace("'", "")
    return [word._replace(text=text, is_known=is_known)]


def _filled(text: str, shell: _Shell) -> str:
    """Return a text with the known variables and products replaced by their values."""

    def value(match: re.Match[str]) -> str:
        known = shell.values.get(match[1] or match[3])
        return known if known is not None else match[2] if match[2] is not None else match[0]

    for _ in range(3):  # a default may contain a variable
        text = _VARIABLE.sub(value, text)
    return _PRODUCT.sub(partial(_product, shell=shell), text)


def _product(match: re.Match[str], shell: _Shell) -> str:
    """Return the value of ``$((A * 2))``; the text itself if a factor is not known."""
    factors = [name.strip().lstrip("$") for name in match[1].split("*")]
    values = [shell.values.get(name, name) for name in factors]
    known = all(value.isdigit() for value in values)
    return str(prod(map(int, values))) if known else match[0]


# --- commands


def _script(words: list[Word], batch: Mapping[str, str], shell: _Shell) -> Script | None:
    """Return the command of a launcher, of a training program, or of Python that runs a script or
    module; else None."""
    first = next((at for at, word in enumerate(words) if _is_launcher(word.text)), None)
    if first is None:
        return None
    names = [word.text for word in words]
    base = _base(names[first])
    launcher = _LAUNCHERS.get(base, "python")
    at = first + 1
    if base in _TRAINERS:
        is_training = any(name in _TRAINERS[base] for name in names[at : at + 1])
        program, launch_places = at if is_training else None, dict[str, Offsets]()
        launch, ranks = dict[str, Any](), _own_ranks(base, shell.values)
        launcher = base
    else:
        if launcher == "python" and _module_of(names, at) in _MODULES:
            launcher, at = _MODULES[_module_of(names, at)], names.index("-m", at) + 2
        program = next((i for i in range(at, len(names)) if _is_program(names, i)), None)
        launch, launch_places = _options(words[at:program])
        ranks = _ranks(launcher, launch, batch)
    if program is None:
        return None
    arguments = words[program + 1 :]
    own, places = _options(arguments)
    file = _arguments_file(arguments, own)
    if launcher == "python" and not own and file is None:
        return None
    named = next((own[name] for name in CONFIG_OPTIONS if isinstance(own.get(name), str)), None)
    if launcher == "accelerate":
        named = named or launch.get("deepspeed_config_file")
    content = _nested({name: value for name, value in own.items() if value is not None})
    content.pop("deepspeed", None)
    if named is not None:
        key = "deepspeed_config" if "deepspeed_config" in own else "deepspeed"
        content[key] = named
    is_accelerate = launcher == "accelerate"
    return Script(
        {**content, LAUNCH: ranks},
        places,
        named,
        launch_config=launch.get("config_file") if is_accelerate else None,
        arguments_file=file,
        launch_options=launch if is_accelerate else {},
        launch_places=launch_places,
        files=dict(shell.files),
        has_launcher=launcher != "python",
    )


def _arguments_file(words: list[Word], options: Mapping[str, Any]) -> str | None:
    """Return the YAML or JSON with arguments: the first word, or ``--config``."""
    is_first = bool(words) and words[0].is_known and not words[0].text.startswith("-")
    named = words[0].text if is_first else options.get("config")
    is_file = isinstance(named, str) and named.endswith((".yaml", ".yml", ".json"))
    return named if is_file else None


def _own_ranks(program: str, values: Mapping[str, str]) -> dict[str, int]:
    """Return ``gpus`` and ``nodes`` of a program that starts its own ranks."""
    nodes, each = _count(values, "NNODES"), _count(values, "NPROC_PER_NODE")
    devices = values.get("CUDA_VISIBLE_DEVICES", "")
    if each is None and program in _ALL_DEVICES and re.fullmatch(r"[\d,]*\d", devices):
        each = len(devices.split(","))
    found = {"gpus": each * (nodes or 1)} if each else {}
    return found | ({"nodes": nodes} if nodes else {})


def _base(word: str) -> str:
    return PurePosixPath(word).name


def _is_launcher(word: str) -> bool:
    return (
        _base(word) in _LAUNCHERS.keys() | _TRAINERS.keys()
        or re.fullmatch(r"python[\d.]*", _base(word)) is not None
    )


def _module_of(names: list[str], at: int) -> str:
    rest = names[at:]
    return rest[rest.index("-m") + 1] if "-m" in rest[:-1] else ""


def _is_program(names: list[str], at: int) -> bool:
    """Return whether the word is a script, or a module after its flag."""
    return names[at].endswith(".py") or names[at - 1] in ("-m", "--module")


def _options(words: list[Word]) -> tuple[dict[str, Any], dict[str, Offsets]]:
    """Return ``--name value``, ``--name=value``, ``--name`` (true) and ``name=value``, and where
    they are; None for a value that is not known."""
    found: dict[str, Any] = {}
    places: dict[str, Offsets] = {}
    name, key = "", words[0] if words else None
    for word in words:
        is_option = word.text.startswith("--")
        written, sign, value = word.text.lstrip("-").partition("=")
        if is_option or (sign and re.fullmatch(r"\+*[A-Za-z_][\w.]*", written)):
            name, key = written.lstrip("+").replace("-", "_"), word
            found[name] = _value(value) if sign else True
            if not word.is_known:
                found[name] = None
        elif word.text.startswith("-") and not re.match(r"-[\d.]", word.text):
            name = ""
            continue
        elif name and key is not None:
            more = _value(word.text) if word.is_known else None
            before = found[name]
            found[name] = more if before is True else before
        if name and key is not None:
            place = (key.start, key.end, word.start, word.end)
            places["/" + name.replace(".", "/")] = place
    return found, places


def _value(text: str) -> Any:
    """Return the JSON value of a word, as argparse and OmegaConf convert it."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return None if lowered in ("null", "none") else text


_INTEGER = re.compile(r"[-+]?\d{1,300}", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:\d{1,300}\.?\d*|\.\d+)(?:e[-+]?\d{1,2})?", re.ASCII | re.IGNORECASE)


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options; those of ``a.b=value`` in blocks, as Hydra builds them."""
    content: dict[str, Any] = {}
    for name, value in options.items():
        *blocks, last = name.split(".", MAX_DEPTH // 2)
        place = content
        for block in blocks:
            inner = place.get(block)
            place[block] = inner = inner if is_block(inner) else {}
            place = inner
        place[last] = value
    return content


def _ranks(launcher: str, options: Mapping[str, Any], batch: Mapping[str, str]) -> dict[str, int]:
    """Return ``gpus`` and ``nodes`` as far as they are known."""
    nodes = _count(options, "num_nodes", "nnodes", "num_machines") or _count(batch, "nodes")
    if launcher == "accelerate":
        gpus = _count(options, "num_processes")
        return {name: n for name, n in (("gpus", gpus), ("nodes", nodes)) if n}
    each = _count(options, "num_gpus", "nproc_per_node") or _included(options.get("include"))
    if each is None and launcher != "deepspeed":
        each = _count(batch, "gpus-per-node" if launcher == "torchrun" else "ntasks-per-node")
    if each is None:
        each = _count(batch, "gpus-per-node") if launcher == "deepspeed" else None
    found = {"gpus": each * (nodes or 1)} if each else {}
    return found | ({"nodes": nodes} if nodes else {})


def _count(values: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if isinstance(value, str) and value.isdigit():
            return int(value)
    return None


def _included(value: object) -> int | None:
    """Return the GPUs of ``localhost:0,1`` on one host."""
    slots = value.partition(":")[2] if isinstance(value, str) and "@" not in value else ""
    return len(slots.split(",")) if slots else None
