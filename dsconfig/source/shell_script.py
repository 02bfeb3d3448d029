"""The training command of a shell script or Slurm job: its options and its number of ranks.

Nothing is executed: ``source.shell`` follows the script. An option whose value is only known at run
time (``$1``, ``$(...)``) is left out.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from dsconfig.report import Range
from dsconfig.source import plugin_settings, started_ranks
from dsconfig.source.document import LAUNCH
from dsconfig.source.pointer import MAX_DEPTH, is_block
from dsconfig.source.positions import LineIndex, Offsets
from dsconfig.source.shell import Command, Word, WrittenFile, commands_of

CONFIG_OPTIONS = ("deepspeed", "deepspeed_config", "ds_config", "deepspeed_config_file")
_LAUNCHERS = {"deepspeed": "deepspeed", "torchrun": "torchrun", "accelerate": "accelerate"}
_TRAINERS: Mapping[str, tuple[str, ...]] = {
    "llamafactory-cli": ("train",),
    "lmf": ("train",),
    "axolotl": ("train",),
    "swift": ("sft", "pt", "rlhf"),
    "trl": ("sft", "dpo", "kto", "grpo", "rloo", "reward"),
    "xtuner": ("train",),
}
"""Programs that start their own ranks, and their subcommands that train."""
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
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*|\$\(")


@dataclass(frozen=True, slots=True)
class Script:
    """The training command of a script.

    ``content``: its options by name, nested where the name of ``a.b=value`` has dots, and
    ``LAUNCH``. ``places``: offsets of each option and its value, by pointer of ``content``;
    ``lines``: the line, and the file if it is another one.
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
    """Options of the launcher; ``launch_places``: where they are."""
    launch_places: Mapping[str, Offsets] = field(default_factory=dict[str, Offsets])
    files: Mapping[str, WrittenFile] = field(default_factory=dict[str, WrittenFile])
    has_launcher: bool = True
    launcher: str = ""
    program: tuple[str, ...] = ()
    """The script, the module after ``-m``, or the program and its subcommand."""
    environment: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    """Variables that the script sets for the command; None: not known."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options by name as written, not nested; None: not known."""
    lines: Mapping[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """Line of each option, and the script if it is another one."""
    first: str | None = None
    """The first argument, if it is no option."""
    flags: tuple[str, ...] = ()
    """Arguments with two hyphens, as written."""
    line: int = 0
    folder: str = ""
    batch: Mapping[str, str] = field(default_factory=dict[str, str])
    """What ``#SBATCH`` and ``srun`` reserve; ``is_submitted``: ``srun`` starts the launcher."""
    is_submitted: bool = False
    repeated: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Options that are written twice with different numbers: the first and the last, as written."""

    @property
    def rank(self) -> int:
        """Order of preference among the commands of a script."""
        named = self.config or self.launch_config or (self.has_launcher and self.arguments_file)
        named = named or plugin_settings.launch_of_options(self.launch_options)
        return 0 if named else 1 if self.has_launcher else 2


Read = Callable[[str], str | None]
"""Returns the text of a file that a script names, or None."""


def _nothing(name: str) -> str | None:
    del name
    return None


def training_command(
    text: str,
    name: str = "",
    read: Read = _nothing,
    is_known: Callable[[Script], bool] = lambda _: True,
) -> Script | None:
    """Return the first command that passes a ds_config to a program, else the first one that a
    launcher starts; None without either. ``is_known``: whether a command takes precedence."""
    batch = started_ranks.reserved(text)
    variables = {
        name: batch[option] for option in _SLURM if option in batch for name in _SLURM[option]
    }
    for is_called in (False, True):  # a script may do nothing without arguments
        followed = commands_of(text, name, read, variables, is_called=is_called)
        scripts = (_script(command, batch, followed.files) for command in followed.commands)
        found = [script for script in scripts if script is not None]
        if found or "$1" not in text:
            break
    return min(found, key=lambda script: (script.rank, not is_known(script)), default=None)


def option_range(text: str, option: str) -> Range | None:
    """Return the position of an option of the training command, or None without it."""
    script = training_command(text)
    place = None if script is None else script.places.get("/" + option.replace(".", "/"))
    return None if place is None else LineIndex(text).range(place[0], place[1])


# --- commands


def _script(
    command: Command, batch: Mapping[str, str], files: Mapping[str, WrittenFile]
) -> Script | None:
    """Return the command of a launcher, of a training program, or of Python that runs a script or
    module; else None."""
    words = _without_submitter(list(command.words))
    if words and words[0].text in ("echo", "printf"):
        return None
    first = next((at for at, word in enumerate(words) if _is_launcher(word.text)), None)
    if first is None:
        return None
    if first and _base(words[0].text) in ("srun", "mpirun", "mpiexec"):
        own = started_ranks.counts(" ".join(w.text for w in words[:first]))
        batch = {**batch, **own}
        if "ntasks" in own:
            batch["srun-ntasks"] = own["ntasks"]
    values = {name: v.text if v.is_known else None for name, v in command.environment.items()}
    names = [word.text for word in words]
    base = _base(names[first])
    launcher = _LAUNCHERS.get(base, "python")
    at = first + 1
    if base in _TRAINERS:
        is_training = any(name in _TRAINERS[base] for name in names[at : at + 1])
        program, launch_places = at if is_training else None, dict[str, Offsets]()
        launch, ranks = dict[str, Any](), started_ranks.of_program(base, values)
        if _base(words[0].text) == "srun":
            ranks = ranks or started_ranks.of_launcher("", {}, batch, values, is_complete=True)
        launcher = base
    else:
        if launcher == "python" and _module_of(names, at) in _MODULES:
            launcher, at = _MODULES[_module_of(names, at)], names.index("-m", at) + 2
        program = next((i for i in range(at, len(names)) if _is_program(names, i)), None)
        launch, launch_places = _options(words[at:program])
        launch = _on_every_node(launch, command.words[: len(command.words) - len(words)])
        ranks = started_ranks.of_launcher(
            launcher,
            launch,
            batch,
            values,
            is_complete=all(map(_is_known, words[at:program])),
        )
    if program is None:
        return None
    arguments = words[program + 1 :]
    own, places = _options(arguments)
    file = _arguments_file(arguments, own)
    if file is None and base in _TRAINERS and arguments and not arguments[0].is_known:
        file = arguments[0].text
    if launcher == "python" and not own and file is None:
        return None
    named = next((own[name] for name in CONFIG_OPTIONS if isinstance(own.get(name), str)), None)
    if launcher == "accelerate":
        given = launch.get("deepspeed_config_file")
        named = named or (given if isinstance(given, str) else None)
    content = _nested({name: value for name, value in own.items() if value is not None})
    content.pop("deepspeed", None)
    if named is not None:
        key = "deepspeed_config" if "deepspeed_config" in own else "deepspeed"
        content[key] = named
    is_accelerate = launcher == "accelerate"
    exported = {} if is_accelerate else _exported(values)
    named = named or exported.get("deepspeed_config_file")
    is_local = all(not word.file for word in words)
    return Script(
        {**content, LAUNCH: ranks},
        places if is_local else {},
        named,
        launch_config=_file_in(launch) if is_accelerate else None,
        arguments_file=file,
        launch_options=launch | exported,
        launch_places=launch_places if is_local else {},
        files=files,
        has_launcher=launcher != "python",
        launcher=launcher,
        program=(base, names[program]) if base in _TRAINERS else (names[program],),
        options=own,
        first=next((w.text for w in arguments[:1] if not w.text.startswith("-")), None),
        flags=tuple(word.text for word in arguments if re.match(r"--\w", word.text)),
        lines=_lines(arguments),
        line=words[first].line,
        environment=values,
        folder=command.folder,
        batch=batch,
        is_submitted=_base(words[0].text) == "srun" and first > 0,
        repeated=_repeated(arguments, own),
    )


def _on_every_node(launch: dict[str, Any], submitter: Sequence[Word]) -> dict[str, Any]:
    """Return the options of accelerate as mason.py submits them: it multiplies the processes by the
    nodes of the job."""
    nodes = _options(list(submitter))[0].get("num_nodes")
    processes = launch.get("num_processes")
    is_mason = any(_base(word.text) == "mason.py" for word in submitter)
    if not is_mason or type(nodes) is not int or type(processes) is not int:
        return launch
    return {**launch, "num_processes": processes * nodes, "num_machines": nodes}


def _file_in(options: Mapping[str, Any]) -> str | None:
    named = options.get("config_file")
    return named if isinstance(named, str) else None


def _exported(values: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the settings of accelerate in variables of the script, which a Trainer reads too."""
    try:
        return plugin_settings.settings_of_variables(values)
    except ValueError:
        return {}


def _without_submitter(words: list[Word]) -> list[Word]:
    """Return the words after ``--``, or the last quoted ``&&`` after it, if they start a launcher:
    those before it submit a job. ``uv run`` of a script is Python."""
    ends = [at for at, word in enumerate(words) if word.text == "--"]
    ends += [at for at, word in enumerate(words) if ends and at > ends[0] and word.text == "&&"]
    for at in (*reversed(ends), -1):
        found = words[at + 1 : at + 4]
        is_script = len(found) > 2 and found[2].text.endswith(".py")
        if is_script and _base(found[0].text) == "uv" and found[1].text == "run":
            return [found[0]._replace(text="python"), *words[at + 3 :]]
        if at >= 0 and any(_is_launcher(each.text) for each in found):
            return words[at + 1 :]
    return words


def _arguments_file(words: list[Word], options: Mapping[str, Any]) -> str | None:
    """Return the YAML or JSON with arguments: the first word, or ``--config``; as it is written if
    only the run knows it."""
    is_first = bool(words) and not words[0].text.startswith("-")
    named = words[0].text if is_first else options.get("config", "")
    if named is None:
        return "$config"
    is_file = isinstance(named, str) and named.endswith((".yaml", ".yml", ".json"))
    return named if is_file else None


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
            found[name] = value_of(value) if sign else True
            if not _is_known(word):
                found[name] = None
        elif word.text.startswith("-") and not re.match(r"-[\d.]", word.text):
            name = ""
            continue
        elif name and key is not None:
            more = value_of(word.text) if _is_known(word) else None
            before = found[name]
            found[name] = more if before is True else before
        if name and key is not None:
            place = (key.start, key.end, word.start, word.end)
            places["/" + name.replace(".", "/")] = place
    return found, places


_ONE_TEXT = frozenset(
    (
        *("deepspeed", "eval_strategy", "evaluation_strategy", "lr_scheduler_type", "optim"),
        *("model_name_or_path", "output_dir", "save_strategy"),
    )
)
"""Options of the Trainer that have one text as their value."""


def _repeated(words: list[Word], options: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the options that the command itself has twice, with their first and last values;
    those in variables are replaced on purpose, and programs collect most texts."""
    found: dict[str, tuple[str, str]] = {}
    seen: dict[str, str] = {}
    for at, word in enumerate(words):
        written, sign, value = word.text.removeprefix("--").partition("=")
        is_written = word.end - word.start == len(word.text) and word.text.startswith("--")
        following = words[at + 1 : at + 2]
        if not is_written or not (sign or following) or (not sign and not _is_known(following[0])):
            continue
        name = written.replace("-", "_")
        value = value if sign else following[0].text
        if not sign and value.startswith("--"):
            continue
        first = seen.setdefault(name, value)
        are_numbers = all(type(value_of(each)) in (int, float, bool) for each in (first, value))
        is_one = are_numbers or name in _ONE_TEXT
        if is_one and value_of(first) != value_of(value) == options.get(name):
            found[name] = (first, value)
    return found


def _is_known(word: Word) -> bool:
    """Return whether no run decides a word; text of a here-document may contain a variable."""
    return word.is_known and _VARIABLE.search(word.text) is None


def _lines(words: list[Word]) -> dict[str, tuple[int, str]]:
    """Return the line and the script of each option."""
    found: dict[str, tuple[int, str]] = {}
    for word in words:
        written, sign, _ = word.text.lstrip("-").partition("=")
        if word.text.startswith("--") or sign:
            name = written.lstrip("+").replace("-", "_")
            found[name] = (word.line, word.file)
    return found


def value_of(text: str) -> Any:
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
